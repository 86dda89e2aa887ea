"""YARN's capacity scheduler as EasyScale's evaluation has it: gang FIFO over a cluster of several device types.

A job gets all the devices that it asks for, of the one type that it asks for (its first one that has enough for its
least), and keeps them to its end. One queue for all types: the first job that does not fit keeps every later one
waiting. Unlike `fifo`, a job never takes another type than its own. EasyScale's published simulator stops after the
head of the queue, so that its baseline runs one job at a time on the whole cluster: `one_at_a_time` does the same, and
flatters whatever is compared with it.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.sched.gang import Room, asked, share, staying
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnCs:
    """The policy, with its options."""

    one_at_a_time: bool = False
    """Never two jobs at once, however much is free."""
    queue_by_type: bool = False
    """A job that does not fit keeps only those waiting that ask for the same type."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the heads of the queue start when they fit."""
        room = Room(view)
        shares = staying(view, room)
        stuck: set[str] = set()
        for place, job in enumerate(job for job in view.admitted if job.spec.id not in shares):
            if self.one_at_a_time and shares:
                break
            wants = room.requested(job.spec)[:1]
            counts = room.take(job, wants) if not stuck.intersection(kind for kind, _ in wants) else None
            if counts is not None:
                shares.update([share(job, counts, _why(place, job, counts[0][1]))])
                continue
            if wants and not self.queue_by_type:
                break
            stuck.update(kind for kind, _ in wants)
        return Decision(shares, state)


def _why(place: int, job: JobState, given: int) -> str:
    wanted = asked(job.spec)
    found = f"number {place + 1} of the queue, and all the devices that it asks for are free"
    return found if given == wanted else f"{found}: {given}, as there are never {wanted}"
