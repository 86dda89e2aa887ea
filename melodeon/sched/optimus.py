"""Optimus: at fixed intervals, one share for everybody and then each device where it saves most time.

Every job gets its least first, so that none starves; where there are more jobs than devices, those with the least work
left go first. Then devices go by marginal gain. Between intervals nothing changes, since each change costs a pause.
"""

from dataclasses import dataclass
from math import floor

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.climbing import Climber, climb, time_saved
from melodeon.sched.estimate import ladders
from melodeon.sched.gang import Room, staying
from melodeon.sched.policy import Decision, check_period


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus:
    """The policy, with its option."""

    interval_s: float = 600.0
    """Seconds between two divisions; 0: at every event."""

    def __post_init__(self) -> None:
        if self.interval_s < 0:
            raise UsageError(f"interval_s={self.interval_s} must not be negative: 0 divides at every event")
        if self.interval_s:
            check_period("interval_s", self.interval_s)

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Divide again when the interval is over; `state` is when that is."""
        if not view.admitted:
            return Decision({}, state)
        due_s = state if isinstance(state, float) else view.now_s
        if self.interval_s and view.now_s < due_s:
            return Decision(staying(view, Room(view), "kept until the next division"), due_s, due_s)
        if not self.interval_s:
            return Decision(_divided(view), None)
        next_s = (floor(view.now_s / self.interval_s) + 1) * self.interval_s
        return Decision(_divided(view), next_s, next_s)


def _divided(view: ClusterView) -> dict[JobId, Share]:
    members: dict[DeviceType, list[Climber]] = {kind: [] for kind in view.cluster.types}
    free = dict(view.cluster.capacity)
    for job in sorted(view.admitted, key=_least_work):
        # On the type that it holds if that has room, else where most devices are free.
        fits = [(kind, ladder) for kind, ladder in ladders(view, job.spec) if ladder.levels[0] <= free[kind]]
        if fits:
            kind, ladder = max(fits, key=lambda entry: (job.held(entry[0]), free[entry[0]]))
            free[kind] -= ladder.levels[0]
            members[kind].append(Climber(job.spec.id, ladder, ladder.levels[0], ladder.rates[0], job.remaining))
    shares: dict[JobId, Share] = {}
    for kind, climbers in members.items():
        least = {climber.job: climber.workers for climber in climbers}
        for job_id, given in climb(climbers, free[kind], time_saved).items():
            more = given.workers - least[job_id]
            why = f"{least[job_id]} so that it runs"
            why += f", {more} more, the last saving {given.gain:.0f} s for each device" if more else ""
            shares[job_id] = Share(job_id, ((kind, given.workers),), why)
    return shares


def _least_work(job: JobState) -> tuple[float, float]:
    """Seconds that it would still take alone on one device of its preferred type."""
    return job.remaining / job.spec.curves[0][1].rate(1), job.spec.submit_s
