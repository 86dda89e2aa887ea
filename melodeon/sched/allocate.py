"""ElasticFlow's Algorithm 2 on one pool: everybody's promise for this moment, then the free devices by return.

A job that needs its whole promise climbs only if the higher level can be promised to its end: going back later would
cost it a pause that it cannot afford.
"""

from dataclasses import dataclass

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.filling import SAFETY, Ask, Grid, Reservation, reserve
from melodeon.sched.greedy import Climber, climb
from melodeon.sched.pool import Pool
from melodeon.sched.profile import Profile

INFINITE = float("inf")


@dataclass(slots=True)
class Taken:
    """What one pool gives away now."""

    pool: Pool
    shares: dict[JobId, Share]
    wake_at: float


def allocate(pool: Pool, kind: DeviceType, count: int, grid: Grid) -> Taken:
    """Algorithm 2 on one type of device."""
    now, profile = pool.at_s, pool.profile.copy()
    # Equal returns go to the earlier deadline: promises that end soon are the ones that newcomers collide with.
    asks = sorted((pool.asks[job] for job in pool.members), key=lambda ask: ask.deadline_s)
    plans = [pool.members[ask.job] for ask in asks]
    climbers = [_climber(ask, plan, now, ask.job in pool.late) for ask, plan in zip(asks, plans, strict=True)]

    def may_climb(index: int, level: int) -> bool:
        stretched = _stretch(profile, asks[index], plans[index], grid, level)
        if stretched is not None:
            plans[index] = stretched
        return stretched is not None

    base = sum(c.ladder.levels[c.base - 1] for c in climbers if c.base)
    levels, returns = climb(climbers, count - base, may_climb)
    shares: dict[JobId, Share] = {}
    wake_at = INFINITE
    for ask, plan, climber, level, value in zip(asks, plans, climbers, levels, returns, strict=True):
        workers = ask.ladder.levels[level - 1] if level else 0
        if level:
            promised = ask.ladder.levels[climber.base - 1] if climber.base else 0
            why = _why(workers, promised, value, ask.job in pool.late)
            # A migration would cost it more than it can lose.
            pinned = bool(plan.blocks) and plan.slack < _risk(plan, ask.ladder, now, ask.pauses[level - 1])
            shares[ask.job] = Share(ask.job, ((kind, workers),), why, pinned)
        if plan.blocks and (starts := plan.next_above(now, workers)) is not None and starts < wake_at:
            wake_at = starts
    members = {ask.job: plan for ask, plan in zip(asks, plans, strict=True)}
    return Taken(Pool(now, members, pool.late, profile, pool.asks, pool.goals), shares, wake_at)


def _climber(ask: Ask, plan: Reservation, now: float, late: bool) -> Climber:
    ladder = ask.ladder
    base = ladder.reach(plan.workers_at(now)) if plan.blocks else 0
    level = plan.level or (len(ladder.levels) if late else 1)
    there_and_back = ask.pauses[-1] + (ask.pauses[base - 1] if base else 0.0)
    rigid = bool(plan.blocks) and plan.slack < _risk(plan, ladder, now, there_and_back)
    return Climber(ladder, base, ladder.levels[level - 1] / ladder.rates[level - 1], ask.held, rigid)


def _risk(plan: Reservation, ladder: Ladder, now: float, pause_s: float) -> float:
    """Iterations of its promise that a job would lose to a pause from now on: those before its start are free."""
    start, _, workers = plan.blocks[0]
    return ladder.rate(workers) * max(0.0, now + pause_s - max(start, now))


def _stretch(profile: Profile, ask: Ask, plan: Reservation, grid: Grid, level: int) -> Reservation | None:
    """A promise of `level` from now to the job's end instead of the one it has, if there is room all along."""
    workers, rate, now = ask.ladder.levels[level - 1], ask.ladder.rates[level - 1], grid.now_s
    done = now + ask.entry_s(level, now) + ask.work * SAFETY / rate
    slack = (ask.deadline_s - done) * rate
    if slack < 0:
        return None
    reserve(profile, plan, -1)
    until = grid.end(done)
    if profile.peak(now, until) + workers > profile.capacity:
        reserve(profile, plan)
        return None
    stretched = Reservation(((now, until, workers),), plan.level, slack)
    reserve(profile, stretched)
    return stretched


def _why(workers: int, promised: int, value: float, late: bool) -> str:
    if late:
        return f"{workers} left after the promises; its own deadline can no longer be met"
    if not promised:
        return f"{workers} free now, at a marginal return of {value:.2f}; its promise starts later"
    if workers == promised:
        return f"{promised} promised so that it meets its deadline"
    return f"{promised} promised so that it meets its deadline, {workers - promised} more at a return of {value:.2f}"
