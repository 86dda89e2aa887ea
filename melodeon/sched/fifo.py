"""FIFO gang scheduling, as YARN's capacity scheduler does it: in order of submission, all or nothing, never preempted.

The first job that does not fit keeps all later ones waiting, unless the cluster has too few devices for it anyway.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.sched.gang import Room, granted, share, staying
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the queue's head starts when it fits."""
        room = Room(view)
        shares = staying(view, room)
        waiting = [job for job in view.admitted if not job.counts and room.requested(job.spec)]
        for place, job in enumerate(waiting):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                break
            why = f"number {place + 1} of the queue, and {granted(job.spec, counts[0][1])}"
            shares.update([share(job, counts, why)])
        return Decision(shares, state)
