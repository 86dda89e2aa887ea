"""Tiresias: discretised two-dimensional least attained service. Not elastic, preemptive, no deadlines.

Jobs sink through queues as the device-seconds they have used pass the thresholds; lower use goes first, and within a
queue the job that came first. Every job gets what it requested or nothing; jobs that do not fit are passed. A job that
has waited `promote` times as long as it ran goes back to the first queue.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.attained import check_queues, queues
from melodeon.sched.gang import Room, granted, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """The policy, with its options."""

    thresholds_s: tuple[float, ...] = (3250.0, 7200.0, 18000.0)
    """Device-seconds at which a job sinks to the next queue."""
    promote: float | None = None
    """None: nobody is promoted."""

    def __post_init__(self) -> None:
        check_queues(self.thresholds_s, self.promote)

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Least attained service first."""
        now = queues(view, state, self.thresholds_s, self.promote)
        room = Room(view)
        shares: dict[JobId, Share] = {}
        wake_at = float("inf")
        for job in sorted(view.admitted, key=now.order):
            counts = room.take(job, room.requested(job.spec))
            if counts is None:
                wake_at = min(wake_at, now.rises_at(job, view.now_s, self.promote))
                continue
            why = f"queue {now.of(job) + 1} by attained service, and {granted(job.spec, counts[0][1])}"
            shares.update([share(job, counts, why)])
            wake_at = min(wake_at, now.sinks_at(job, view.now_s, counts[0][1]))
        return Decision(shares, now.standings, wake_at if wake_at < float("inf") else None)
