"""One round on the live state: what policies see is made from the log and from what is observed, and what they decide
becomes facts for the log. Pure: the same state, observations and moment give the same facts.

    view_of(state, progress) -> sched.tick -> Judged, Planned facts

Rounds count seconds from the beginning of the log, so that a policy's arithmetic is as exact as in the simulator.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil

from msgspec.structs import replace as changed

from melodeon.control.curves import Known
from melodeon.control.events import AnyFact, Judged, Planned
from melodeon.control.job import Job
from melodeon.control.specs import UNKNOWN, SpecBook, lease_sizes, must_measure
from melodeon.control.state import State
from melodeon.core.cluster import Cluster, NodeId
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import Goal, JobId
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Migrate, Reject, Resize, Start, Suspend
from melodeon.core.service import Phase
from melodeon.placement.topology import topology_of
from melodeon.sched.policy import Policy
from melodeon.sched.profiled import Profiled
from melodeon.sched.quota import DAY_S, Accepted
from melodeon.sched.tick import Round, Rules, TickState, tick

FEW_STARTS = 5
"""With fewer seen, starts are expected to take what they usually do."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job was when it was last seen, and how fast it went."""

    step: int
    at: float
    rate: float = 0.0
    """0: not measured yet."""
    settled: bool = False
    """It trains on the devices that it was given."""

    def steps_at(self, now: float, rate: float) -> float:
        """How far it is by now, at this rate."""
        return self.step + (rate * max(0.0, now - self.at) if self.settled else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What rounds stand on and do not change."""

    cluster: Cluster
    policy: Policy
    policy_name: str
    rules: Rules
    overheads: Overheads
    book: SpecBook
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one round came to."""

    facts: tuple[AnyFact, ...]
    memory: TickState
    wake_at: float | None


def healthy(cluster: Cluster, down: Mapping[str, tuple[bool, bool]]) -> Cluster:
    """The cluster without the nodes that are down or drained."""
    for name in down:
        if any(node.id == name for node in cluster.nodes):
            cluster = cluster.with_node(NodeId(name), up=False)
    return cluster


def view_of(
    state: State, world: World, progress: Mapping[str, Progress], now: float, rejudge: Collection[str] = ()
) -> ClusterView:
    """The cluster as a policy sees it; `rejudge` names jobs that are to be judged although they were."""
    origin = state.origin if state.origin is not None else now
    overheads = overheads_of(state, world.overheads)
    jobs: dict[JobId, JobState] = {}
    kept, everything = world.book.waiting, state.known
    for name, job in state.live.items():
        known = everything.get(job.signature, UNKNOWN)
        same = kept.get(name)
        if same is not None and same[0] is job and same[1] is known and name not in rejudge:
            jobs[JobId(name)] = same[2]
        elif not job.over and job.phase is not Phase.CANCELLING:
            made = _job_state(job, known, world, overheads, progress.get(name), now, origin)
            if name in rejudge:
                made = changed(made, admitted_s=None)
            elif job.phase is Phase.WAITING and not job.counts:
                kept[name] = (job, known, made)
            jobs[made.spec.id] = made
    return ClusterView(now - origin, healthy(world.cluster, state.down), jobs, 0.0, overheads)


def overheads_of(state: State, expected: Overheads) -> Overheads:
    """What changes are expected to cost: a start, once some were seen, what four of five of the newest took at most."""
    if expected.start is None or len(state.starts) < FEW_STARTS:
        return expected
    seen_s = sorted(state.starts)[ceil(len(state.starts) * 0.8) - 1]
    base_s = ceil(seen_s * 2) / 2  # in half seconds: promises are not worked out anew for less
    start = replace(expected.start, base_s=base_s, large_s=max(base_s, expected.start.large_s))
    return replace(expected, start=start)


def _job_state(
    job: Job, known: Known, world: World, overheads: Overheads, seen: Progress | None, now: float, origin: float
) -> JobState:
    told = world.book.told(job, known, origin)
    judged = job.judged_at
    if judged is None and job.phase is Phase.PROFILING and not _judgeable(job, world, known):
        judged = job.submitted_at  # not for the policy to judge yet: it is lent devices to be measured on
    done = float(job.step)
    if seen is not None:
        done = max(done, seen.steps_at(now, seen.rate or told.rate(job.counts)))
    return JobState(
        told,
        None if judged is None else judged - origin,
        max(0.0, min(done, told.iterations - min(1.0, told.iterations / 2))),
        job.counts,
        job.placement,
        _resumes(job, overheads, seen, now) - origin,
        None if job.first_started_at is None else job.first_started_at - origin,
        job.service_s + job.num_devices * max(0.0, now - job.given_at),
    )


def _judgeable(job: Job, world: World, known: Known) -> bool:
    return job.unmeasurable or not must_measure(job, world.book.spec(job), known, world.cluster)


def _resumes(job: Job, overheads: Overheads, seen: Progress | None, now: float) -> float:
    """When its last change is over."""
    if not job.counts:
        return job.given_at or job.submitted_at
    fresh = job.first_started_at == job.given_at
    due = job.given_at + overheads.pause_s("", job.num_devices, fresh=fresh, held=job.training)
    if seen is not None and seen.settled and seen.at >= job.given_at:
        return min(due, now)
    return due


def policy_of(state: State, world: World) -> Profiled:
    """The policy of this round: the cluster's own, with what is lent for measuring and what operators have fixed."""
    leases: dict[JobId, tuple[int, ...]] = {}
    fixed: dict[JobId, int] = {}
    for name, job in state.live.items():
        if job.phase is not Phase.PROFILING and (job.override is None or job.over or job.phase is Phase.CANCELLING):
            continue
        if job.override is not None and job.judged_at is not None:
            fixed[JobId(name)] = job.override
            continue
        known = state.known.get(job.signature, UNKNOWN)
        if job.phase is Phase.PROFILING and job.judged_at is None and not _judgeable(job, world, known):
            leases[JobId(name)] = lease_sizes(world.book.spec(job), world.cluster, known)
    return Profiled(inner=world.policy, leases=leases, fixed=fixed)


def run_round(
    state: State,
    world: World,
    progress: Mapping[str, Progress],
    memory: TickState,
    now: float,
    rejudge: Collection[str] = (),
) -> Found:
    """Judge who is new, divide the devices, and say what changes."""
    origin = state.origin if state.origin is not None else now
    refused = _hopeless(state, world, now)
    view = view_of(state, world, progress, now, rejudge)
    if refused:
        gone = {fact.job for fact in refused}
        jobs = {name: job for name, job in view.jobs.items() if name not in gone}
        view = ClusterView(view.now_s, view.cluster, jobs, view.slot_s, view.overheads)
    rules = replace(world.rules, known=frozenset(map(JobId, rejudge)))
    found = tick(view, policy_of(state, world), memory, rules)
    facts: list[AnyFact] = [*refused, *_verdicts(state, world, found, origin, now), *_changes(view, found)]
    wake = None if found.wake_at is None else found.wake_at + origin
    return Found(tuple(facts), found.state, wake)


def _hopeless(state: State, world: World, now: float) -> list[Judged]:
    """Jobs that cannot be judged any more: no speed to judge by, or the deadline came first."""
    facts = []
    for job in state.live.values():
        if job.judged_at is not None or job.phase is not Phase.PROFILING:
            continue
        known, spec = state.known.get(job.signature, UNKNOWN), world.book.spec(job)
        if job.deadline_at is not None and now >= job.deadline_at and spec.goal is Goal.HARD:
            why = "its deadline passed before its speed could be measured"
        elif job.unmeasurable and must_measure(job, spec, known, world.cluster):
            why = "its speed could not be measured; give its curve, or on_miss: soft"
        else:
            continue
        facts.append(Judged(job=job.id, admitted=False, why=why, policy=world.policy_name))
    return facts


def _verdicts(state: State, world: World, found: Round, origin: float, now: float) -> list[Judged]:
    facts = []
    for verdict in found.verdicts:
        job = state.live[verdict.job]
        earliest = None
        if verdict.earliest_deadline_s is not None:
            earliest = world.book.quoted(verdict.earliest_deadline_s + origin, now)
        facts.append(
            Judged(
                job=job.id,
                admitted=verdict.admitted,
                why=verdict.why,
                earliest_at=earliest,
                policy=world.policy_name,
            )
        )
    return facts


def _changes(view: ClusterView, found: Round) -> list[Planned]:
    facts = []
    topology = topology_of(view.cluster)
    for action in found.actions:
        match action:
            case Reject():
                continue
            case Suspend(job=job, why=why):
                facts.append(Planned(job=job, counts=(), placement=(), slots={}, why=why))
            case Start() | Resize() | Migrate():
                slots: dict[str, list[int]] = {}
                for node, index in topology.devices_of(action.placement):
                    slots.setdefault(node.id, []).append(index)
                share = found.plan.shares[action.job]
                facts.append(
                    Planned(
                        job=action.job,
                        counts=share.counts,
                        placement=action.placement,
                        slots={node: tuple(sorted(indices)) for node, indices in slots.items()},
                        why=action.why,
                    )
                )
    return facts


def under(rules: Rules, world: World, state: State, memory: TickState, now: float) -> tuple[World, TickState]:
    """The world under rules that may be new: with the first quotas, all that was accepted before them counts."""
    if rules.quotas is not None and world.rules.quotas is None:
        memory = TickState(memory.policy, accepted_of(state, now))
    return replace(world, rules=rules), memory


def accepted_of(state: State, now: float) -> Accepted:
    """By user: when each job of the last day was accepted; for quotas after a restart."""
    found: dict[str, list[float]] = {}
    origin = state.origin if state.origin is not None else now
    for job in (*state.past.values(), *state.live.values()):
        if job.judged_at is not None and job.phase is not Phase.REJECTED and job.judged_at > now - DAY_S:
            found.setdefault(job.user, []).append(job.judged_at - origin)
    return {user: tuple(sorted(times)) for user, times in found.items()}
