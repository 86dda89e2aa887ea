"""Tiresias: discretised two-dimensional least attained service. Not elastic, preemptive, no deadlines.

Jobs sink through queues as the device-seconds they have used pass the thresholds; lower use goes first, and within a
queue the job that came first. Every job gets what it requested or nothing; jobs that do not fit are passed. A job that
has waited `promote` times as long as it ran goes back to the first queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """The policy, with its options."""

    thresholds_s: tuple[float, ...] = (3250.0, 7200.0, 18000.0)
    """Device-seconds at which a job sinks to the next queue."""
    promote: float | None = None
    """None: nobody is promoted."""

    def __post_init__(self) -> None:
        if list(self.thresholds_s) != sorted(self.thresholds_s) or any(t <= 0 for t in self.thresholds_s):
            raise UsageError(f"thresholds_s={self.thresholds_s} must be above 0 and ascend")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Least attained service first."""
        marks: Mapping[JobId, float] = state if isinstance(state, Mapping) else {}
        marks = self._promoted(view, marks)
        queue_of = {job.spec.id: self._queue(job.service_s - marks.get(job.spec.id, 0.0)) for job in view.admitted}
        room = Room(view)
        shares: dict[JobId, Share] = {}
        wake_at = float("inf")
        for job in sorted(view.admitted, key=lambda job: (queue_of[job.spec.id], job.spec.submit_s)):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                continue
            queue = queue_of[job.spec.id]
            shares.update([share(job, counts, f"queue {queue + 1} by attained service, and what it requested is free")])
            if queue < len(self.thresholds_s):
                left = self.thresholds_s[queue] - (job.service_s - marks.get(job.spec.id, 0.0))
                # A little after the threshold, so that rounding does not bring the job back to it.
                wake_at = min(wake_at, view.now_s + left / counts[0][1] + 1e-3)
        return Decision(shares, marks, wake_at if wake_at < float("inf") else None)

    def _queue(self, service_s: float) -> int:
        return sum(service_s >= threshold for threshold in self.thresholds_s)

    def _promoted(self, view: ClusterView, marks: Mapping[JobId, float]) -> Mapping[JobId, float]:
        """From which service on each job is counted: a starving job starts again at 0."""
        found = {job.spec.id: marks[job.spec.id] for job in view.admitted if job.spec.id in marks}
        if self.promote is not None:
            for job in view.admitted:
                ran_s = job.service_s / job.spec.requested_workers
                waited_s = view.now_s - job.spec.submit_s - ran_s
                if not job.counts and ran_s > 0 and waited_s > self.promote * ran_s:
                    found[job.spec.id] = job.service_s
        return found
