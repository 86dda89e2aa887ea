"""Earliest deadline first, each job on as many devices as make it faster; preemptive.

Jobs that do not fit are passed.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Edf:
    """The policy, with its option."""

    widest: bool = False
    """Give each job the most devices it was measured on, past its best speed too, as ElasticFlow's own code does."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """In order of deadline, everybody who fits."""
        room = Room(view)
        shares: dict[JobId, Share] = {}
        for place, job in enumerate(sorted(view.admitted, key=deadline)):
            counts = room.take(job, room.widest(job.spec) if self.widest else room.fastest(job.spec))
            if counts is not None:
                why = f"number {place + 1} by deadline, on as many devices as {'it knows' if self.widest else 'help'}"
                shares.update([share(job, counts, why)])
            if room.is_empty:
                break
        return Decision(shares, state)


def deadline(job: JobState) -> tuple[float, float]:
    """By deadline, then by submission; best-effort jobs last."""
    due = job.spec.deadline_s
    return (due if due is not None else float("inf"), job.spec.submit_s)
