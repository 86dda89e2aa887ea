"""The promises made on one type of device: who has what set aside, refilled in every round, never broken by a refill.

Progressive filling in deadline order is a heuristic: a later refill may fail although the promises of the last round
still hold. Then those are kept. A job whose promise cannot be kept (nodes failed) is late: it goes on after the others
are served, and it does not keep newcomers out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from melodeon.core.jobs import Goal, JobId
from melodeon.sched.filling import Ask, Grid, Reservation, fill, kept, reserve
from melodeon.sched.profile import Profile

NOTHING = Reservation()


@dataclass(frozen=True, slots=True)
class Pool:
    """Promises at one moment."""

    at_s: float
    members: Mapping[JobId, Reservation]
    """Every job that runs on this type; an empty reservation promises nothing."""
    late: frozenset[JobId]
    """Jobs that were promised their deadline and cannot be given it any more."""
    profile: Profile = field(repr=False, compare=False)
    asks: Mapping[JobId, Ask] = field(repr=False, compare=False)
    goals: Mapping[JobId, Goal] = field(repr=False, compare=False)


def refresh(
    old: Pool | None, asks: Mapping[JobId, Ask], goals: Mapping[JobId, Goal], grid: Grid, capacity: int, spare: int
) -> Pool:
    """Plan again from now on for jobs that are admitted already."""
    was_late = old.late if old else frozenset()
    before = old.members if old else {}
    by_deadline = sorted(asks.values(), key=lambda ask: ask.deadline_s)
    hard = [ask for ask in by_deadline if goals[ask.job] is Goal.HARD and ask.job not in was_late]
    after = [ask for ask in by_deadline if goals[ask.job] is Goal.HARD and ask.job in was_late]
    soft = [ask for ask in by_deadline if goals[ask.job] is Goal.SOFT]
    profile = Profile(grid.now_s, capacity)
    found = _refill(profile, hard, grid, spare)
    if found is None:
        profile = Profile(grid.now_s, capacity)
        found = _keep(profile, before, hard, grid)
    late = _add_if_possible(profile, found, [ask for ask in hard if ask.job not in found] + after, grid)
    _add_if_possible(profile, found, soft, grid)
    members = {job: found.get(job, NOTHING) for job in asks}
    return Pool(grid.now_s, members, frozenset(late), profile, asks, goals)


def with_newcomer(pool: Pool, ask: Ask, goal: Goal, grid: Grid, spare: int) -> Pool | None:
    """The pool with one more job, or None if a hard deadline, its own or another's, could not be met."""
    asks = {**pool.asks, ask.job: ask}
    goals = {**pool.goals, ask.job: goal}
    # Fits beside everybody's promise as it stands: nobody else need be asked.
    own = fill(pool.profile, ask, grid, spare) if goal is not Goal.BEST_EFFORT else None
    if own is not None or goal is not Goal.HARD:
        profile = pool.profile
        if own is not None:
            profile = profile.copy()
            reserve(profile, own)
        return Pool(grid.now_s, {**pool.members, ask.job: own or NOTHING}, pool.late, profile, asks, goals)
    hard = [a for job, a in asks.items() if goals[job] is Goal.HARD and job not in pool.late]
    profile = Profile(grid.now_s, pool.profile.capacity)
    found = _refill(profile, sorted(hard, key=lambda a: a.deadline_s), grid, spare, strict=ask.job)
    if found is None:
        return None
    rest = sorted(pool.late), [job for job in asks if goals[job] is Goal.SOFT]
    _add_if_possible(profile, found, [asks[job] for jobs in rest for job in jobs], grid)
    return Pool(grid.now_s, {job: found.get(job, NOTHING) for job in asks}, pool.late, profile, asks, goals)


def _refill(
    profile: Profile, asks: Iterable[Ask], grid: Grid, spare: int, strict: JobId | None = None
) -> dict[JobId, Reservation] | None:
    """Algorithm 1 for jobs in order of deadline; None as soon as one is not satisfied."""
    found: dict[JobId, Reservation] = {}
    for ask in asks:
        own = fill(profile, ask, grid, spare)
        if own is None and spare and ask.job != strict:
            own = fill(profile, ask, grid)
        if own is None:
            return None
        reserve(profile, own)
        found[ask.job] = own
    return found


def _keep(
    profile: Profile, before: Mapping[JobId, Reservation], asks: list[Ask], grid: Grid
) -> dict[JobId, Reservation]:
    """The promises of the last round as far as they hold; jobs whose promise is gone get what else there is."""
    found: dict[JobId, Reservation] = {}
    for ask in asks:
        own = kept(before.get(ask.job, NOTHING), ask, grid)
        if own is not None and all(
            profile.peak(start, stop) + workers <= profile.capacity for start, stop, workers in own.blocks
        ):
            reserve(profile, own)
            found[ask.job] = own
    _add_if_possible(profile, found, [ask for ask in asks if ask.job not in found], grid)
    return found


def _add_if_possible(profile: Profile, found: dict[JobId, Reservation], asks: Iterable[Ask], grid: Grid) -> list[JobId]:
    """Fill jobs that have no claim to it; who was not satisfied."""
    without: list[JobId] = []
    for ask in asks:
        own = fill(profile, ask, grid)
        if own is None:
            without.append(ask.job)
        else:
            reserve(profile, own)
            found[ask.job] = own
    return without
