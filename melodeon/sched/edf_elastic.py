"""Earliest deadline first with elastic scaling: minimum satisfactory shares in order of deadline, nobody turned away.

A job that can no longer be in time takes as much as makes it faster, as in plain EDF; what is left goes to the earliest
deadlines.
"""

from dataclasses import dataclass

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.edf_rules import deadline
from melodeon.sched.estimate import ladders
from melodeon.sched.filling import Ask, Grid, fill, reserve
from melodeon.sched.policy import Decision
from melodeon.sched.profile import Profile

INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdfElastic:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Minimum shares first, then the rest by deadline."""
        homes = _homes(view)
        shares: dict[JobId, Share] = {}
        wake_at = INFINITE
        for kind, count in view.cluster.capacity:
            members = sorted((job for job in view.admitted if homes[job.spec.id] == kind), key=deadline)
            wake_at = min(wake_at, _divide(view, kind, count, members, shares))
        return Decision(shares, state, wake_at if wake_at < INFINITE else None)


def _homes(view: ClusterView) -> dict[JobId, DeviceType | None]:
    """The type that each job runs on: the one it holds, else its first one with enough devices."""
    homes: dict[JobId, DeviceType | None] = {}
    for job in view.admitted:
        kinds = [kind for kind, _ in ladders(view, job.spec)]
        homes[job.spec.id] = next((kind for kind in kinds if job.held(kind)), kinds[0] if kinds else None)
    return homes


def _divide(
    view: ClusterView,
    kind: DeviceType,
    count: int,
    members: list[JobState],
    shares: dict[JobId, Share],
) -> float:
    """Share out one type; when to look again."""
    grid, profile = Grid.of(view.now_s, view.slot_s), Profile(view.now_s, count)
    free, wake_at = count, INFINITE
    given: list[tuple[JobState, Ladder, int, str]] = []
    for job in members:
        ladder = job.spec.ladder(kind)
        assert ladder is not None, "members have a curve for their type"
        pauses = tuple(view.overheads.pause_s(job.spec.model, level) for level in ladder.levels)
        free_start = job.started_s is None and not view.overheads.first_start
        ask = Ask(
            job.spec.id, ladder, pauses, job.remaining, deadline(job)[0], job.held(kind), job.resume_s, free_start
        )
        plan = fill(profile, ask, grid) if ask.deadline_s < INFINITE else None
        workers, why = 0, "left by jobs with deadlines"
        if plan is not None:
            reserve(profile, plan)
            workers = _floor(ladder, min(free, plan.workers_at(view.now_s)))
            why = f"its minimum share in order of deadline is {workers} now"
            starts = plan.next_above(view.now_s, workers)
            wake_at = min(wake_at, starts or INFINITE)
        elif ask.deadline_s < INFINITE:
            why = "it is late and takes what makes it faster"
            workers = _floor(ladder, free)
            if workers:
                _hold(profile, workers, ask.work / job.spec.rate(((kind, workers),)))
        free -= workers
        given.append((job, ladder, workers, why))
    for job, ladder, workers, why in given:
        more = max(workers, _floor(ladder, workers + free))
        free -= more - workers
        if more > workers and job.spec.deadline_s is not None:
            why += f", and {more - workers} more were left"
        if more:
            shares[job.spec.id] = Share(job.spec.id, ((kind, more),), why)
    return wake_at


def _floor(ladder: Ladder, workers: int) -> int:
    """The highest level that so many workers reach."""
    level = ladder.reach(workers)
    return ladder.levels[level - 1] if level else 0


def _hold(profile: Profile, workers: int, busy_s: float) -> None:
    """Set devices aside from now on, for `busy_s` or until an earlier deadline needs them."""
    start = profile.times[0]
    stop = start + busy_s
    for time, used in zip(profile.times, profile.used, strict=True):
        if time < stop and used + workers > profile.capacity:
            stop = time
            break
    profile.add(start, stop, workers)
