"""FIFO gang scheduling, as YARN's capacity scheduler does it: in order of submission, all or nothing, never preempted.

The first job that does not fit keeps all later ones waiting.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the queue's head starts when it fits."""
        room = Room(view)
        shares: dict[JobId, Share] = {}
        running = [job for job in view.admitted if job.counts]
        waiting = [job for job in view.admitted if not job.counts]
        for job in running:
            counts = room.take(job, job.counts)
            if counts is not None:
                shares.update([share(job, counts, "it runs until it is done")])
        for place, job in enumerate(waiting):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                break
            shares.update([share(job, counts, f"number {place + 1} of the queue, and what it requested is free")])
        return Decision(shares, state)
