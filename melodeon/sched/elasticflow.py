"""ElasticFlow: a deadline is guaranteed or refused, and what is left goes where it returns most.

    admit   progressive filling with the newcomer among all promises (Algorithm 1); a refusal names the earliest
            deadline that would have been accepted
    decide  everybody's promise for this moment, then the free devices by marginal return (Algorithm 2)

Best-effort and soft-deadline jobs join after the promises; a reserve keeps room for node failures. With several device
types each job stays on one. Trades away: a job that needs its whole window is not stretched unless the stretch can be
promised to its end, since going back would cost it a pause that it cannot afford.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, sqrt

from msgspec.structs import replace

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Share, Verdict
from melodeon.sched.allocate import allocate
from melodeon.sched.edf_rules import deadline
from melodeon.sched.estimate import ladders
from melodeon.sched.filling import INFINITE, Ask, Grid, fill
from melodeon.sched.policy import Decision
from melodeon.sched.pool import (
    NOTHING,
    AskOf,
    Member,
    Pool,
    advance,
    exact,
    has_room,
    rearranged,
    with_newcomer,
)
from melodeon.sched.profile import Profile

Pools = Mapping[DeviceType, Pool]
QUOTE_PROBES = 18
"""At most this many deadlines are tried for an answer to a job that is turned away."""
QUOTE_PART = 0.01
"""An answer is good to this part of the time that it leaves."""
FARTHEST_S = 1e12
"""No answer lies farther off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFlow:
    """The policy, with its options."""

    reserve: int = 0
    """Devices of each type that are never promised, so that nodes may fail (see `reserve_for`); they are still used."""
    quote: bool = True
    """Tell jobs that are turned away the earliest deadline that would have been accepted."""
    spare_pauses: int = 0
    """A newcomer must have room for this many pauses (migrations) more than its own plan needs."""
    powers: bool = True
    """Give powers of two, and a job's own least; else every count of its curve, which may leave fragments."""

    def __post_init__(self) -> None:
        if self.reserve < 0 or self.spare_pauses < 0:
            raise UsageError(f"reserve={self.reserve} and spare_pauses={self.spare_pauses} must not be negative")

    def admit(self, view: ClusterView, job: JobState, state: object) -> tuple[Verdict, object]:
        """Admit if its deadline and everybody else's can be met."""
        spec, grid = job.spec, Grid.of(view.now_s, view.slot_s)
        pools = self._current(view, state, grid)
        kinds = _kinds(view, spec)
        if not kinds:
            names = ", ".join(kind for kind, _ in spec.curves)
            return Verdict(
                spec.id, admitted=False, why=f"it can run on {names}, which this cluster does not have"
            ), pools
        if spec.goal is not Goal.HARD:
            # Where most devices are left for each job.
            kinds.sort(key=lambda kind: len(pools[kind].members) / (pools[kind].profile.capacity or 0.1))
        for kind in kinds:
            ask_of = self._asking(view, kind)
            pool, ask = pools[kind], ask_of(job, None)
            grown = with_newcomer(pool, ask, spec.goal, grid, self.spare_pauses)
            if grown is None and _feasible(ask, grid, pool):
                if not pool.exact:
                    pools[kind] = pool = exact(pool, view.jobs, ask_of, grid, self.spare_pauses)
                    grown = with_newcomer(pool, ask, spec.goal, grid, self.spare_pauses)
                grown = grown or rearranged(pool, ask, grid, self.spare_pauses)
            if grown is not None:
                return Verdict(spec.id, admitted=True, why=_welcome(spec, grown)), {**pools, kind: grown}
        earliest = self.earliest_deadline(view, job, pools) if self.quote else None
        return Verdict(spec.id, False, self._refusal(view, job), earliest), pools

    def earliest_deadline(self, view: ClusterView, job: JobState, state: object) -> float | None:
        """The earliest deadline after its own that would be accepted now, to about a hundredth of the time left."""
        grid = Grid.of(view.now_s, view.slot_s)
        best: float | None = None
        for kind, pool in self._current(view, state, grid).items():
            if job.spec.ladder(kind) is not None:
                ask_of = self._asking(view, kind)
                current = exact(pool, view.jobs, ask_of, grid, self.spare_pauses)
                found = _earliest(current, ask_of(job, None), grid, self.spare_pauses, best or INFINITE)
                best = found if found is not None else best
        return best

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The promises for this moment, and the rest by marginal return."""
        grid = Grid.of(view.now_s, view.slot_s)
        pools = self._current(view, state, grid)
        shares: dict[JobId, Share] = {}
        after: dict[DeviceType, Pool] = {}
        wake_at = INFINITE
        for kind, count in view.cluster.capacity:
            taken = allocate(pools[kind], view.jobs, self._asking(view, kind), kind, count, grid)
            after[kind] = taken.pool
            shares.update(taken.shares)
            wake_at = min(wake_at, taken.wake_at)
        return Decision(shares, after, wake_at if wake_at < INFINITE else None)

    def _current(self, view: ClusterView, state: object, grid: Grid) -> dict[DeviceType, Pool]:
        """The pools as of now: those of the state, brought up to date if time or anything else has moved."""
        if not isinstance(state, dict):
            return self._taken_over(view, grid)
        old: Pools = state
        pools: dict[DeviceType, Pool] = {}
        for kind, count in view.cluster.capacity:
            pool, capacity = old.get(kind), max(0, count - self.reserve)
            if pool is None:
                pool = Pool(view.now_s, {}, frozenset(), Profile(view.now_s, capacity))
            elif pool.at_s != view.now_s or pool.profile.capacity != capacity:
                pool = advance(pool, view.jobs, self._asking(view, kind), grid, capacity, self.spare_pauses)
            pools[kind] = pool
        return pools

    def _taken_over(self, view: ClusterView, grid: Grid) -> dict[DeviceType, Pool]:
        """The first pools. Jobs that another policy has admitted are promised what can be; the others are late."""
        now_s = view.now_s
        pools = {
            kind: Pool(now_s, {}, frozenset(), Profile(now_s, max(0, count - self.reserve)))
            for kind, count in view.cluster.capacity
        }
        for job in sorted(view.admitted, key=deadline):
            # Where it runs already, if it runs.
            kinds = sorted(_kinds(view, job.spec), key=lambda kind: -job.held(kind))
            asks = [(kind, self._asking(view, kind)(job, None)) for kind in kinds]
            grown = ((kind, with_newcomer(pools[kind], ask, job.spec.goal, grid, 0)) for kind, ask in asks)
            found = next(((kind, pool) for kind, pool in grown if pool is not None), None)
            if found is not None:
                pools[found[0]] = found[1]
            elif asks:
                kind, ask = asks[0]
                members = {**pools[kind].members, ask.job: Member(Goal.HARD, NOTHING, ask, now_s)}
                pools[kind] = replace(pools[kind], members=members, late=pools[kind].late | {ask.job})
        return pools

    def _asking(self, view: ClusterView, kind: DeviceType) -> AskOf:
        """What jobs need of one type of device now."""
        first_start = view.overheads.first_start

        def ask_of(job: JobState, before: Ask | None) -> Ask:
            spec = job.spec
            # A straggler makes the remaining work longer, as far as the planner is concerned.
            work = (spec.iterations - job.done) / job.speed
            free_start = job.started_s is None and not first_start
            if before is not None:
                held, due_s = job.held(kind), before.deadline_s
                return Ask(before.job, before.ladder, before.pauses, work, due_s, held, job.resume_s, free_start)
            made = spec.ladder(kind)
            assert made is not None, "a job is only in pools that it can run in"
            made = self._shares(made)
            due_s = spec.deadline_s if spec.deadline_s is not None else INFINITE
            pauses = _pauses(view.overheads, spec.model, made.levels)
            return Ask(spec.id, made, pauses, work, due_s, job.held(kind), job.resume_s, free_start)

        return ask_of

    def _shares(self, ladder: Ladder) -> Ladder:
        """The levels that may be given: blocks of powers of two leave no fragments; no job runs without its least."""
        kept = [
            at for at, workers in enumerate(ladder.levels) if not self.powers or at == 0 or not workers & (workers - 1)
        ]
        if len(kept) == len(ladder.levels):
            return ladder
        return Ladder(tuple([ladder.levels[at] for at in kept]), tuple([ladder.rates[at] for at in kept]))

    def _refusal(self, view: ClusterView, job: JobState) -> str:
        deadline_s = job.spec.deadline_s
        assert deadline_s is not None, "only jobs with a deadline are turned away"
        best = max(
            self._shares(ladder).rate(max(0, view.cluster.count(kind) - self.reserve))
            for kind, ladder in job.spec.ladders
        )
        left_s = deadline_s - view.now_s
        if best <= 0:
            least = job.spec.min_workers
            what = "1 device" if least == 1 else f"{least} devices"
            return f"it needs at least {what}, and no type has so many that may be promised now"
        if job.remaining > best * left_s:
            needs_s = job.remaining / best
            return f"even alone at its best speed it needs {ceil(needs_s)} s and has {floor(left_s)}"
        if not self._fits_alone(view, job):
            spare_s = left_s - job.remaining / best
            return f"even alone it would have {spare_s:.2g} s to spare, less than is kept for pauses and rounding"
        return "its deadline cannot be met beside those promised before"

    def _fits_alone(self, view: ClusterView, job: JobState) -> bool:
        """Whether it would be admitted if nobody else were there."""
        grid = Grid.of(view.now_s, view.slot_s)
        rooms = ((kind, max(0, view.cluster.count(kind) - self.reserve)) for kind in _kinds(view, job.spec))
        asks = ((Profile(view.now_s, room), self._asking(view, kind)(job, None)) for kind, room in rooms)
        return any(fill(profile, ask, grid, self.spare_pauses) is not None for profile, ask in asks)


def _kinds(view: ClusterView, spec: JobSpec) -> list[DeviceType]:
    """The types of the cluster that a job can run on: with enough devices for its least, now or else with all up."""
    now = [kind for kind, _ in ladders(view, spec)]
    if now:
        return now
    whole = dict.fromkeys((kind for kind, _ in spec.curves if kind in view.cluster.types), 0)
    for node in view.cluster.nodes:
        if node.device_type in whole:
            whole[node.device_type] += node.num_devices
    return [kind for kind, count in whole.items() if count >= spec.min_workers] or list(whole)


def _feasible(ask: Ask, grid: Grid, pool: Pool) -> bool:
    """Whether the job could be in time with nobody else there."""
    reached = ask.ladder.reach(pool.profile.capacity)
    return bool(reached) and ask.ladder.rates[reached - 1] * (ask.deadline_s - grid.now_s) >= ask.work


@lru_cache(maxsize=1024)
def _pauses(overheads: Overheads, model: str, levels: tuple[int, ...]) -> tuple[float, ...]:
    """What a change is planned with: by the time of it a job may have been stopped, or may still be starting."""
    changes = [overheads.pause_s(model, level) for level in levels]
    if overheads.start is not None:
        changes = [pause + overheads.start.seconds(level) for pause, level in zip(changes, levels, strict=True)]
    return tuple(changes)


def _earliest(pool: Pool, ask: Ask, grid: Grid, spare: int, below: float) -> float | None:
    """Search upwards from what the job needs alone, or from what it asked for; then between the last two."""

    def accepted(window: float) -> bool:
        return has_room(pool, replace(ask, deadline_s=grid.now_s + window), grid, spare)

    fits = [
        level for level in range(1, len(ask.ladder.levels) + 1) if ask.ladder.levels[level - 1] <= pool.profile.capacity
    ]
    if not fits:
        return None
    pauses = spare + (not ask.free_start)
    low = min(ask.work / ask.ladder.rates[level - 1] + pauses * ask.pauses[level - 1] for level in fits)
    low = low * (1 + 1e-6) + grid.step_s * 1e-3
    if grid.now_s + low >= below:
        return None
    # Nobody who was refused is told of an earlier deadline; and a short job may have to wait for thousands of times its
    # length: up by ever larger factors, then between by ratio.
    asked = ask.deadline_s - grid.now_s
    low, high = (asked, asked * 2) if low <= asked < INFINITE else (low, low)
    probes, factor = 1, 2.0
    while not accepted(high):
        low, high, factor, probes = high, high * factor, factor * factor, probes + 1
        if high > FARTHEST_S:
            return None
    while probes < QUOTE_PROBES and high - low > max(grid.step_s, QUOTE_PART * high):
        middle, probes = sqrt(low * high), probes + 1
        low, high = (low, middle) if accepted(middle) else (middle, high)
    found = grid.now_s + high
    return found if found < below else None


def _welcome(spec: JobSpec, pool: Pool) -> str:
    plan, ladder = pool.members[spec.id].plan, pool.members[spec.id].ask.ladder
    if spec.goal is Goal.BEST_EFFORT:
        return "best effort: it gets what the promises leave"
    if not plan.level:
        return "soft deadline: it cannot be promised now, so it gets what the promises leave"
    start, _, _ = plan.blocks[0]
    share = ladder.levels[plan.level - 1]
    wait_s = start - pool.at_s
    when = f"beginning {wait_s:.0f} s from now at the latest" if wait_s >= 1 else "beginning now"
    return f"its deadline can be met with a minimum satisfactory share of {share}, {when}"
