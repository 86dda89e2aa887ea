"""ElasticFlow's Algorithm 2 on one pool: everybody's promise for this moment, then the free devices by return.

A job that needs its whole promise climbs only if the higher level can be promised to its end: going back later would
cost it a pause that it cannot afford.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, cast

import msgspec

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.filling import INFINITE, SAFETY, Ask, Grid, Reservation, reserve
from melodeon.sched.greedy import Climber, Step, climb, steps_of
from melodeon.sched.pool import AskOf, Member, Pool
from melodeon.sched.profile import Profile

Stand = tuple[int, int, bool, int, bool]
"""(level that it must have, workers held, whether it is rigid, level of its promise, whether it is late)"""
_RANK = attrgetter("rank")


class Outlook(msgspec.Struct, frozen=True, gc=False):
    """What a job must have and could be given. It stays as it is until `calm_s` while nothing of this changes."""

    plan: Reservation
    counts: Counts
    resume_s: float
    calm_s: float
    promised: int
    """Devices that it must have now."""
    stand: Stand
    """What `steps` were made from."""
    steps: tuple[Step, ...]
    """Everything that it could be given beyond its promise for this moment."""
    rank: tuple[float, JobId]
    """Its deadline and its name: of equal returns, the lowest goes first."""
    known: dict[Stand, tuple[Step, ...]]
    """Its steps from every stand so far: jobs come back to where they stood before."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """What a job was given. It stays as it is while outlook and step do."""

    outlook: Outlook
    step: Step | None
    told: tuple[object, ...]
    """What `share` was made from."""
    share: Share
    """Without devices: it waits."""
    wake_s: float
    """When its promise needs more than that."""


Memory = Mapping[JobId, Given]
"""What was given in the last round; most of it is the same in the next."""


class Taken(NamedTuple):
    """What one pool gives away now."""

    pool: Pool
    shares: dict[JobId, Share]
    wake_at: float


def allocate(
    pool: Pool, jobs: Mapping[JobId, JobState], ask_of: AskOf, kind: DeviceType, count: int, grid: Grid
) -> Taken:
    """Algorithm 2 on one type of device."""
    now, members, profile = pool.at_s, pool.members, pool.profile
    memory = cast(Memory, pool.memory or {})
    outlooks = _outlooks(pool, jobs, kind, memory)
    ranked = sorted([outlook for _, _, outlook in outlooks], key=_RANK)
    steps = chain.from_iterable([outlook.steps for outlook in ranked])
    count -= sum([outlook.promised for outlook in ranked])
    stretched: dict[JobId, Member] = {}

    def may_climb(job: JobId, level: int) -> bool:
        nonlocal profile
        profile = profile.copy() if profile is pool.profile else profile
        member = stretched.get(job, members[job])
        ask = ask_of(jobs[job], member.ask)
        longer = _stretch(profile, ask, member.plan, grid, level)
        if longer is not None:
            stretched[job] = Member(member.goal, longer, ask, now)
        return longer is not None

    taken = climb(steps, count, may_climb)
    if stretched:
        members = {**members, **stretched}
    given: dict[JobId, Given] = {}
    shares: dict[JobId, Share] = {}
    wake_at = INFINITE
    for name, entry, outlook in outlooks:
        step = taken.get(name)
        if entry is None or entry.outlook is not outlook or entry.step is not step:
            entry = _given(members[name], outlook, step, kind, jobs[name], now, entry)
        given[name] = entry
        if entry.share.counts:
            shares[name] = entry.share
        if entry.wake_s < wake_at:
            wake_at = entry.wake_s
    queue = None if stretched else pool.queue
    after = Pool(now, members, pool.late, profile, pool.exact and not stretched, pool.any_soft, given, queue)
    return Taken(after, shares, wake_at)


def _outlooks(
    pool: Pool, jobs: Mapping[JobId, JobState], kind: DeviceType, memory: Memory
) -> list[tuple[JobId, Given | None, Outlook]]:
    """What everybody was given in the last round, and the outlook now: as it was then where nothing is new."""
    now, late, outlooks = pool.at_s, pool.late, []
    for name, member in pool.members.items():
        before, job = memory.get(name), jobs[name]
        outlook = before.outlook if before else None
        if (
            outlook is None
            or now >= outlook.calm_s
            or outlook.resume_s != job.resume_s
            or (outlook.counts is not job.counts and outlook.counts != job.counts)
            # A plan of the same blocks and slack is one for the same work.
            or (outlook.plan is not member.plan and outlook.plan != member.plan)
        ):
            outlook = _outlook(member, job, kind, now, name in late, outlook)
        outlooks.append((name, before, outlook))
    return outlooks


def _outlook(
    member: Member, job: JobState, kind: DeviceType, now_s: float, late: bool, before: Outlook | None
) -> Outlook:
    """What a job must have and could be given from here."""
    plan, ask = member.plan, member.ask
    base, promised, rigid, calm_s = 0, 0, False, INFINITE
    if plan.blocks:
        start, stop, _ = plan.blocks[0]
        calm_s = start - ask.pauses[-1]
        if calm_s <= now_s:
            # Before its promise begins, it can lose less from moment to moment; from then on, what it can lose stays.
            calm_s = stop if start <= now_s else now_s
            promised = plan.workers_at(now_s)
            base = ask.ladder.reach(promised)
            rigid = _at_risk(plan, ask, now_s, len(ask.pauses), ask.pauses[base - 1] if base else 0.0)
    counts = job.counts
    held = counts[0][1] if len(counts) == 1 and counts[0][0] == kind else job.held(kind)
    stand = (base, held, rigid, plan.level, late)
    known, rank = (before.known, before.rank) if before is not None else ({}, (ask.deadline_s, ask.job))
    steps = known.get(stand)
    if steps is None:
        steps = known[stand] = _steps(ask, *stand)
    return Outlook(plan, counts, job.resume_s, calm_s, promised, stand, steps, rank, known)


def _given(
    member: Member,
    outlook: Outlook,
    step: Step | None,
    kind: DeviceType,
    job: JobState,
    now_s: float,
    before: Given | None,
) -> Given:
    plan, ask = member.plan, member.ask
    level, workers, late = outlook.stand[0], outlook.promised, outlook.stand[4]
    if step is not None:
        level = step[2]
        workers = ask.ladder.levels[level - 1]
    pinned, wake_s = False, INFINITE
    if plan.blocks:
        start, _, wanted = plan.blocks[0]
        if level and start < now_s + ask.pauses[level - 1]:
            # Pinned: a migration would cost it more than it can lose.
            pinned = _at_risk(plan, ask, now_s, level)
        if start > now_s and wanted > workers:
            wake_s = _due(plan, ask, job, level, now_s)
        elif len(plan.blocks) > 1:
            later_s = plan.next_above(now_s, workers)
            wake_s = INFINITE if later_s is None else later_s
    told = (step, outlook.promised, pinned, late)
    if before is not None and before.told == told:
        share = before.share
    else:
        why = _why(workers, outlook.promised, late, ask.deadline_s < INFINITE)
        share = Share(ask.job, ((kind, workers),) if workers else (), why, pinned)
    return Given(outlook, step, told, share, wake_s)


def _due(plan: Reservation, ask: Ask, job: JobState, level: int, now_s: float) -> float:
    """When a promise that lies ahead needs more than `level`: what the job trains until then puts its start off."""
    start, stop, wanted = plan.blocks[0]
    if not level:
        return start
    rate, promised = ask.ladder.rates[level - 1], ask.ladder.rate(wanted)
    # At its next change it may pause once; what it had done before the plan was made is in the plan.
    trains_s = start - (now_s if now_s > job.resume_s else job.resume_s) - ask.pauses[-1]
    ahead = ask.work - (job.spec.iterations - job.done) / job.speed
    if trains_s > 0:
        ahead += rate * trains_s
    return max(start, min(stop, start + ahead / (promised - rate)) - 1.0)


def _steps(ask: Ask, base: int, held: int, rigid: bool, level: int, late: bool) -> tuple[Step, ...]:
    ladder = ask.ladder
    worth = (level or (len(ladder.levels) if late else 1)) - 1
    climber = Climber(ladder, base, ladder.levels[worth] / ladder.rates[worth], held, rigid)
    return steps_of(ask.job, climber)


def _at_risk(plan: Reservation, ask: Ask, now_s: float, level: int, back_s: float = 0.0) -> bool:
    """Whether a pause for a change to `level`, and perhaps one back, would cost a job its deadline.

    What it loses before its promise begins is free.
    """
    start, _, workers = plan.blocks[0]
    lost_s = now_s + ask.pauses[level - 1] + back_s - (start if start > now_s else now_s)
    return lost_s > 0 and plan.slack < ask.ladder.rate(workers) * lost_s


def _stretch(profile: Profile, ask: Ask, plan: Reservation, grid: Grid, level: int) -> Reservation | None:
    """A promise of `level` from now to the job's end instead of the one it has, if there is room all along."""
    workers, rate, now = ask.ladder.levels[level - 1], ask.ladder.rates[level - 1], grid.now_s
    done = now + ask.entry_s(level, now) + ask.work * SAFETY / rate
    slack = (ask.deadline_s - done) * rate
    if slack < 0:
        return None
    reserve(profile, plan, -1)
    if profile.peak(now, done) + workers > profile.capacity:
        reserve(profile, plan)
        return None
    stretched = Reservation(((now, done, workers),), plan.level, slack)
    reserve(profile, stretched)
    return stretched


@lru_cache(maxsize=4096)
def _why(workers: int, promised: int, late: bool, has_deadline: bool) -> str:
    if late:
        return f"{workers} left after the promises; its own deadline can no longer be met"
    if not promised:
        spare = f"{workers} that no deadline needs now"
        return f"{spare}; its own would have let it wait" if has_deadline else spare
    if workers == promised:
        return f"{promised} promised so that it meets its deadline"
    return f"{promised} promised so that it meets its deadline, {workers - promised} more that no deadline needs now"
