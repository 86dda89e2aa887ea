"""Round a policy: devices for jobs that are being measured, and for jobs whose size an operator has fixed.

    fixed jobs      get what they were fixed at, before everybody else
    jobs to measure get up to their largest lease, as long as no promise that was kept is broken by it
    all others      are the inner policy's, on the devices that are left

It also lets a policy meet jobs that it has not judged itself: after a restart or a change of policy, or when a job's
deadline or scaling curve has changed. Such a job is judged again under a new name, which makes any policy forget the
old one; if it is refused it goes on without a promise. Pure, and nothing but the inner policy where none of this is
the case.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from msgspec.structs import replace as changed

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.plan import Share, Verdict
from melodeon.sched.policy import Admission, Decision, Policy
from melodeon.sched.pool import Pool

LEASED = 2
"""All leases together take at most one part in so many of the devices."""


@dataclass(frozen=True, slots=True)
class Met:
    """A job that the inner policy knows."""

    alias: JobId
    told: JobSpec
    """The job as it was when it was judged."""
    spec: JobSpec
    """What the inner policy was told: the same, or without its promise."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept from round to round."""

    inner: object = None
    met: Mapping[JobId, Met] = field(default_factory=dict)
    checked: object = None
    """The jobs of the view in which everybody is known: a round asks again for every newcomer."""


Taken = Mapping[DeviceType, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The policy, and the jobs that are not its own just now."""

    inner: Policy
    leases: Mapping[JobId, tuple[int, ...]] = field(default_factory=dict)
    """Jobs to measure: the sizes that would do, best first."""
    fixed: Mapping[JobId, int] = field(default_factory=dict)

    def admit(self, view: ClusterView, job: JobState, state: object) -> tuple[Verdict, object]:
        """Judge a newcomer on the devices that are not taken."""
        memory = _memory(state)
        judge = _judge(self.inner)
        if judge is None:
            verdict = Verdict(job.spec.id, admitted=True, why="this policy admits every job")
            return verdict, _meet(memory, job.spec, memory.inner)
        if job.spec.id in self.fixed:
            return _at_size(view, job, self.fixed[job.spec.id]), memory  # the inner policy never sees it
        taken: dict[DeviceType, int] = {}
        for name in (*self.fixed, *self.leases):
            for kind, count in view.jobs[name].counts if name in view.jobs else ():
                taken[kind] = taken.get(kind, 0) + count
        memory, inside = self._prepared(view, memory, taken)
        alias = _next_alias(memory, job.spec.id)
        asking = inside.jobs[alias]
        verdict, inner = judge(inside, asking, memory.inner)
        verdict = changed(verdict, job=job.spec.id)
        if verdict.admitted:
            return verdict, _meet(memory, job.spec, inner, alias, asking.spec)
        return verdict, Memory(inner, memory.met, memory.checked)

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Fixed sizes first, then leases, then everybody else."""
        memory = _memory(state)
        shares: dict[JobId, Share] = {}
        taken: dict[DeviceType, int] = {}
        for share in self._fixed_shares(view):
            shares[share.job] = share
            _add(taken, share)
        memory, inside = self._prepared(view, memory, taken)
        decision = self.inner.decide(inside, memory.inner)
        late, room = _late(decision.state), view.cluster.num_devices // LEASED
        for name, sizes in self.leases.items():
            job = view.jobs.get(name)
            if job is None:
                continue
            for lease in _leases(view.cluster, job, sizes, taken, room):
                less = dict(taken)
                _add(less, lease)
                trial = self.inner.decide(_seen(view, without(view.cluster, less), inside.jobs), memory.inner)
                if _late(trial.state) <= late:
                    shares[name], taken, decision = lease, less, trial
                    room = max(0, room - lease.num_devices)
                    break
        named = {met.alias: name for name, met in memory.met.items() if met.alias != name}
        for alias, share in decision.shares.items():
            name = named.get(alias, alias)
            shares[name] = share if name == alias else changed(share, job=name)
        return Decision(shares, Memory(decision.state, memory.met), decision.wake_at)

    def _fixed_shares(self, view: ClusterView) -> Iterator[Share]:
        left = dict(view.cluster.capacity)
        for name, count in self.fixed.items():
            job = view.jobs.get(name)
            if job is None or job.admitted_s is None:
                continue
            kind = _kind_with(job, left, count)
            if kind is not None:
                left[kind] -= count
                yield Share(name, ((kind, count),), f"an operator fixed it at {count}")

    def _prepared(self, view: ClusterView, memory: Memory, taken: Taken) -> tuple[Memory, ClusterView]:
        """The inner policy's view, with every job in it judged by it or about to be."""
        if memory.checked is view.jobs:
            return memory, view
        special = {name for name in (*self.fixed, *self.leases) if name in view.jobs}
        met = memory.met
        if special & met.keys() or len(met) > 2 * len(view.jobs) + 16:
            # The inner policy sees no more of them, and forgets them.
            met = {name: known for name, known in met.items() if name in view.jobs and name not in special}
            memory = Memory(memory.inner, met)
        strangers: list[JobState] = []
        others: dict[JobId, JobState] = {}
        plain = not special
        for name, job in view.jobs.items():
            known = met.get(name)
            if name in special:
                continue
            if job.admitted_s is None:
                # Judged before, and to be judged anew: the old name must be gone when it is.
                others[name] = _renamed(job, _next_alias(memory, name)) if known else job
                plain = plain and not known
            elif known is None or known.told is not job.spec:
                strangers.append(job)
            else:
                others[name] = job if known.spec is job.spec else changed(job, spec=known.spec)
                plain = plain and known.spec is job.spec
        if plain and not strangers:
            return Memory(memory.inner, met, view.jobs), view
        jobs = {job.spec.id: job for job in others.values()}
        inside = _seen(view, without(view.cluster, taken), jobs)
        strangers.sort(key=lambda job: (job.spec.deadline_s is None, job.spec.deadline_s or 0.0))
        for job in strangers:
            memory = self._introduce(inside, jobs, job, memory)
        return memory, inside

    def _introduce(self, inside: ClusterView, jobs: dict[JobId, JobState], job: JobState, memory: Memory) -> Memory:
        """Have the inner policy judge a job that is admitted already."""
        told, alias = job.spec, _next_alias(memory, job.spec.id)
        specs = [told if alias == told.id else _renamed(job, alias).spec]
        if told.goal is Goal.HARD:
            specs.append(replace(specs[0], goal=Goal.SOFT))
        judge = _judge(self.inner)
        for spec in specs:
            asking = job if spec is told else changed(job, spec=spec)
            if judge is None:
                jobs[alias] = asking
                return _meet(memory, told, memory.inner, alias, spec)
            jobs[alias] = changed(asking, admitted_s=None)
            verdict, inner = judge(inside, jobs[alias], memory.inner)
            memory = Memory(inner, memory.met)
            if verdict.admitted:
                jobs[alias] = asking
                return _meet(memory, told, inner, alias, spec)
        # Nothing that it can run on is there now: it waits, and is introduced again in the next round.
        del jobs[alias]
        return memory


def without(cluster: Cluster, taken: Taken) -> Cluster:
    """The cluster with some devices fewer, for whoever counts them."""
    left = {kind: count for kind, count in taken.items() if count > 0}
    if not left:
        return cluster
    nodes = list(cluster.nodes)
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        less = min(left.get(node.device_type, 0), node.num_devices) if node.up else 0
        if less:
            left[node.device_type] -= less
            gone = less == node.num_devices
            nodes[index] = replace(node, up=False) if gone else replace(node, num_devices=node.num_devices - less)
    return Cluster(tuple(nodes))


def _at_size(view: ClusterView, job: JobState, count: int) -> Verdict:
    """Whether a job that an operator has fixed will be in time."""
    spec, name = job.spec, job.spec.id
    kind = _kind_with(job, dict(view.cluster.capacity), count)
    rate = 0.0 if kind is None else spec.rate(((kind, count),)) * job.speed
    if spec.goal is not Goal.HARD or spec.deadline_s is None:
        return Verdict(name, admitted=True, why=f"an operator fixed it at {count}, and it may be late")
    if rate <= 0.0:
        return Verdict(name, admitted=False, why=f"an operator fixed it at {count}, which are not there now")
    end_s = max(view.now_s, job.resume_s) + job.remaining / rate
    if end_s <= spec.deadline_s:
        return Verdict(
            name, admitted=True, why=f"its deadline can be met with the {count} that an operator fixed it at"
        )
    needs, has = end_s - view.now_s, max(0.0, spec.deadline_s - view.now_s)
    why = f"with the {count} that an operator fixed it at, it needs {needs:.0f} s and has {has:.0f}"
    return Verdict(name, admitted=False, why=why, earliest_deadline_s=end_s)


def _judge(policy: Policy) -> Callable[[ClusterView, JobState, object], tuple[Verdict, object]] | None:
    return cast(Admission, policy).admit if hasattr(policy, "admit") else None


def _seen(view: ClusterView, cluster: Cluster, jobs: Mapping[JobId, JobState]) -> ClusterView:
    return ClusterView(view.now_s, cluster, jobs, view.slot_s, view.overheads)


def _memory(state: object) -> Memory:
    return state if isinstance(state, Memory) else Memory()


def _meet(
    memory: Memory, told: JobSpec, inner: object, alias: JobId | None = None, spec: JobSpec | None = None
) -> Memory:
    return Memory(inner, {**memory.met, told.id: Met(alias or told.id, told, spec or told)}, memory.checked)


def _next_alias(memory: Memory, name: JobId) -> JobId:
    known = memory.met.get(name)
    if known is None:
        return name
    _, _, number = known.alias.partition("~")
    return JobId(f"{name}~{int(number or 0) + 1}")


def _renamed(job: JobState, alias: JobId) -> JobState:
    return changed(job, spec=replace(job.spec, id=alias))


def _add(taken: dict[DeviceType, int], share: Share) -> None:
    for kind, count in share.counts:
        taken[kind] = taken.get(kind, 0) + count


def _kind_with(job: JobState, left: Mapping[DeviceType, int], count: int) -> DeviceType | None:
    """A type with so many devices left, the one that it runs on first."""
    kinds = [kind for kind, _ in job.counts] + [kind for kind, _ in job.spec.curves]
    return next((kind for kind in kinds if left.get(kind, 0) >= count), None)


def _leases(cluster: Cluster, job: JobState, sizes: tuple[int, ...], taken: Taken, room: int) -> Iterator[Share]:
    """What it could be lent, best first; what it holds already comes first, so that measuring is not disturbed."""
    left = {kind: count - taken.get(kind, 0) for kind, count in cluster.capacity}
    order = sorted(sizes, key=lambda size: (size != job.num_devices, -size))
    least = min(sizes)
    for size in order:
        kind = _kind_with(job, left, size)
        if kind is not None and size <= max(room, least):
            yield Share(job.spec.id, ((kind, size),), "its speed is measured before it is judged")


def _late(state: object) -> int:
    """Promises that cannot be kept, where the policy makes some."""
    if not isinstance(state, Mapping):
        return 0
    return sum(len(pool.late) for pool in state.values() if isinstance(pool, Pool))
