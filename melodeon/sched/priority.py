"""Static priorities: highest weight first, each job on what it requested until it is done; never resized or preempted.

What VirtualFlow compares its elastic sharing with. The first job of the queue that does not fit keeps all others
waiting, so that a large job of high priority is not passed for ever; one for which there are never enough does not.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.sched.gang import Room, granted, share, staying
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the queue's head starts when it fits."""
        room = Room(view)
        shares = staying(view, room)
        waiting = [job for job in view.admitted if not job.counts and room.requested(job.spec)]
        for job in sorted(waiting, key=lambda job: (-job.spec.weight, job.spec.submit_s)):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                break
            why = f"first of the queue by weight {job.spec.weight:g}, and {granted(job.spec, counts[0][1])}"
            shares.update([share(job, counts, why)])
        return Decision(shares, state)
