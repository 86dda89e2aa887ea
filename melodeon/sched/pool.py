"""The promises made on one type of device: who has what set aside. A promise is never broken by planning again.

Planning everybody again in every round would cost more than all the rest: a promise that has not begun stays good while
its job runs ahead of it, and so does one that is being kept. So most rounds leave promises as they are (`advance`).
Everybody is planned again, in order of deadline as in ElasticFlow's Algorithm 1 (`refresh`), when a promise falls due
that the job does not hold yet, when a newcomer does not fit beside the promises as they stand, and after failures.

Progressive filling in deadline order is a heuristic: it may fail although the promises of the last round still hold.
Then those are kept. A job whose promise cannot be kept (nodes failed) is late: it goes on after the others are served,
and it does not keep newcomers out.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

import msgspec

from melodeon.core.clusterview import JobState
from melodeon.core.jobs import Goal, JobId
from melodeon.sched.filling import Ask, Grid, Reservation, fill, kept, reserve, set_aside
from melodeon.sched.profile import Profile

NOTHING = Reservation()
_CLOSE = 1e-9

AskOf = Callable[[JobState, Ask | None], Ask]
"""What a job needs now; what never changes is taken from an earlier answer."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One job of a pool."""

    goal: Goal
    plan: Reservation
    """An empty one promises nothing."""
    ask: Ask
    """What the job needed when the plan was made."""
    at_s: float
    """When that was."""


Members = Mapping[JobId, Member]


class Pool(msgspec.Struct, frozen=True):
    """Promises at one moment."""

    at_s: float
    members: Members
    """Every job that runs on this type."""
    late: frozenset[JobId]
    """Jobs that were promised their deadline and cannot be given it any more."""
    profile: Profile
    exact: bool = True
    """Whether everybody was planned again at this moment."""
    any_soft: bool = False
    memory: object = None
    """What `allocate` worked out in the last round."""
    queue: tuple[Ask, ...] | None = None
    """The hard deadlines in order, if the promises are just those of filling them in that order now."""


def refresh(old: Pool, asks: Mapping[JobId, Ask], grid: Grid, capacity: int, spare: int) -> Pool:
    """Plan everybody again who is asking."""
    now, before = grid.now_s, old.members
    by_deadline = sorted(asks.values(), key=_DEADLINE)
    hard: list[Ask] = []
    after: list[Ask] = []
    soft: list[Ask] = []
    for ask in by_deadline:
        goal = before[ask.job].goal
        if goal is Goal.HARD:
            (after if ask.job in old.late else hard).append(ask)
        elif goal is Goal.SOFT:
            soft.append(ask)
    profile = Profile(now, capacity)
    found: dict[JobId, Reservation] = {}
    in_order = _refill(profile, found, hard, grid, spare)
    if not in_order:
        profile = Profile(now, capacity)
        found = _keep(profile, before, hard, grid)
    without = _add_if_possible(profile, found, [ask for ask in hard if ask.job not in found] + after, grid)
    _add_if_possible(profile, found, soft, grid)
    members = {job: Member(before[job].goal, found.get(job, NOTHING), ask, now) for job, ask in asks.items()}
    queue = tuple(hard) if in_order and not after else None
    return Pool(now, members, frozenset(without), profile, True, bool(soft), old.memory, queue)


def advance(old: Pool, jobs: Mapping[JobId, JobState], ask_of: AskOf, grid: Grid, capacity: int, spare: int) -> Pool:
    """The promises as of now, for those jobs that are still there."""
    now = grid.now_s
    if old.profile.capacity != capacity or old.late or old.any_soft:
        return _refreshed(old, jobs, ask_of, grid, capacity, spare)
    gone: list[JobId] = []
    asks: list[Ask] = []
    for name, member in old.members.items():
        job = jobs.get(name)
        if job is None:
            gone.append(name)
            continue
        if not member.plan.blocks:
            continue
        start, _, workers = member.plan.blocks[0]
        work = (job.spec.iterations - job.done) / job.speed
        # A promise that has not fallen due is good while it is enough.
        if _is_kept(member, job, work, now) if start <= now else work <= member.ask.work:
            continue
        ask = ask_of(job, member.ask)
        if start <= now and ask.held < workers:
            # It must be given more now, unless jobs that ran ahead of their promises have left room for later.
            return _refreshed(old, jobs, ask_of, grid, capacity, spare)
        asks.append(ask)
    profile, members = old.profile.since(now), dict(old.members)
    for name in gone:
        reserve(profile, members.pop(name).plan, -1)
    for ask in asks:
        member = members[ask.job]
        reserve(profile, member.plan, -1)
        plan = set_aside(profile, ask, grid, spare)
        if plan is None and spare:
            plan = set_aside(profile, ask, grid)
        if plan is None:
            plan = kept(member.plan, ask, grid)
            if plan is None:
                return _refreshed(old, jobs, ask_of, grid, capacity, spare)
            reserve(profile, plan)
        members[ask.job] = Member(member.goal, plan, ask, now)
    return Pool(now, members, old.late, profile, False, False, old.memory)


def exact(pool: Pool, jobs: Mapping[JobId, JobState], ask_of: AskOf, grid: Grid, spare: int) -> Pool:
    """The pool with everybody planned again at this moment."""
    return pool if pool.exact else _refreshed(pool, jobs, ask_of, grid, pool.profile.capacity, spare)


def with_newcomer(pool: Pool, ask: Ask, goal: Goal, grid: Grid, spare: int) -> Pool | None:
    """The pool with one more job beside everybody's promise as it stands; None: a hard deadline has no room there."""
    profile, own = pool.profile.copy(), None
    if goal is not Goal.BEST_EFFORT:
        own = set_aside(profile, ask, grid, spare)
    if own is None and goal is Goal.HARD:
        return None
    members = {**pool.members, ask.job: Member(goal, own or NOTHING, ask, grid.now_s)}
    any_soft = pool.any_soft or goal is Goal.SOFT
    return Pool(grid.now_s, members, pool.late, profile, pool.exact, any_soft, pool.memory)


def rearranged(pool: Pool, ask: Ask, grid: Grid, spare: int) -> Pool | None:
    """The exact pool with one more hard deadline and everybody moved to make room; None: somebody would be late."""
    filled = _make_room(pool, ask, grid, spare)
    if filled is None:
        return None
    profile, found, queue = filled
    members = {**pool.members, ask.job: Member(Goal.HARD, NOTHING, ask, grid.now_s)}
    rest = [members[job].ask for job in sorted(pool.late)] + [m.ask for m in members.values() if m.goal is Goal.SOFT]
    _add_if_possible(profile, found, rest, grid)
    planned = {job: Member(m.goal, found.get(job, NOTHING), m.ask, grid.now_s) for job, m in members.items()}
    return Pool(grid.now_s, planned, pool.late, profile, True, pool.any_soft, pool.memory, queue)


def has_room(pool: Pool, ask: Ask, grid: Grid, spare: int) -> bool:
    """Whether the exact pool could take one more hard deadline, if need be with everybody moved."""
    return fill(pool.profile, ask, grid, spare) is not None or _make_room(pool, ask, grid, spare) is not None


def _make_room(
    pool: Pool, ask: Ask, grid: Grid, spare: int
) -> tuple[Profile, dict[JobId, Reservation], tuple[Ask, ...]] | None:
    """Fill the hard deadlines and a newcomer's in order; None: somebody would be late."""
    profile = Profile(grid.now_s, pool.profile.capacity)
    found: dict[JobId, Reservation] = {}
    old, known = pool.queue, 0
    if old is None:
        hard = [m.ask for job, m in pool.members.items() if m.goal is Goal.HARD and job not in pool.late]
        old = tuple(sorted(hard, key=_DEADLINE))
    place = bisect_right(old, ask.deadline_s, key=_DEADLINE)
    queue = (*old[:place], ask, *old[place:])
    if pool.queue is not None:
        # Whoever comes before the newcomer was filled in this order already, and would get just the same again.
        known = place
        for before in old[:place]:
            plan = found[before.job] = pool.members[before.job].plan
            reserve(profile, plan)
    return (profile, found, queue) if _refill(profile, found, queue[known:], grid, spare, ask.job) else None


def _refreshed(
    pool: Pool, jobs: Mapping[JobId, JobState], ask_of: AskOf, grid: Grid, capacity: int, spare: int
) -> Pool:
    asks = {name: ask_of(jobs[name], m.ask) for name, m in pool.members.items() if name in jobs}
    return refresh(pool, asks, grid, capacity, spare)


_DEADLINE = attrgetter("deadline_s")


def _is_kept(member: Member, job: JobState, work: float, now_s: float) -> bool:
    """Whether a promise that has fallen due is being kept just as planned."""
    blocks, ask = member.plan.blocks, member.ask
    workers = blocks[0][2]
    if len(blocks) > 1 or ask.held != workers or job.resume_s != ask.resume_s:
        return False
    expected = ask.work - ask.ladder.rate(workers) * max(0.0, now_s - max(member.at_s, ask.resume_s))
    return job.num_devices == workers and work <= expected + _CLOSE * ask.work


def _refill(
    profile: Profile,
    found: dict[JobId, Reservation],
    asks: Iterable[Ask],
    grid: Grid,
    spare: int,
    strict: JobId | None = None,
) -> bool:
    """Algorithm 1 for jobs in order of deadline, noted in `found`; False as soon as one is not satisfied."""
    for ask in asks:
        own = set_aside(profile, ask, grid, spare)
        if own is None and spare and ask.job != strict:
            own = set_aside(profile, ask, grid)
        if own is None:
            return False
        found[ask.job] = own
    return True


def _keep(profile: Profile, before: Members, asks: list[Ask], grid: Grid) -> dict[JobId, Reservation]:
    """The promises of the last round as far as they hold; jobs whose promise is gone get what else there is."""
    found: dict[JobId, Reservation] = {}
    for ask in asks:
        own = kept(before[ask.job].plan, ask, grid)
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
        own = set_aside(profile, ask, grid)
        if own is None:
            without.append(ask.job)
        else:
            found[ask.job] = own
    return without
