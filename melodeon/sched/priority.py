"""Static priorities: highest weight first, each job on what it requested until it is done; never resized or preempted.

What VirtualFlow compares its elastic sharing with. The first job of the queue that does not fit keeps all others
waiting, so that a large job of high priority is not passed for ever.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the queue's head starts when it fits."""
        room = Room(view)
        shares: dict[JobId, Share] = {}
        for job in view.admitted:
            counts = room.take(job, job.counts) if job.counts else None
            if counts is not None:
                shares.update([share(job, counts, "it runs until it is done")])
        waiting = [job for job in view.admitted if not job.counts]
        for job in sorted(waiting, key=lambda job: (-job.spec.weight, job.spec.submit_s)):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                break
            why = f"first of the queue by weight {job.spec.weight:g}, and what it requested is free"
            shares.update([share(job, counts, why)])
        return Decision(shares, state)
