"""One job as EasyScale's job master sees it: what its devices can do, its best plan, and what it would like to have.

A proposal is the plan with more devices of one type: at most `growth` times as many in all, because adding one at a
time would stop at every count that does not divide the virtual workers. Configurations outside minP and maxP, over the
waste threshold or known to be slower are ruled out; of the others the best few are proposed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.jobs import Curves, JobSpec
from melodeon.sched.easyscale_plan import SAME, Capability, Configuration, released, top_plan


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """A job's figures; one value a job, compared by identity so that plans are cheap to look up."""

    virtual_workers: int
    min_devices: int
    """minP, or 1."""
    max_devices: int
    """maxP, or fewer where the job says so."""
    speeds: tuple[tuple[DeviceType, tuple[float, ...]], ...]
    """By type, preferred first: virtual workers a second on one of 1, 2, ... devices."""

    @property
    def kinds(self) -> tuple[DeviceType, ...]:
        """The types that it can run on, preferred first."""
        return tuple(kind for kind, _ in self.speeds)

    def capability(self, kind: DeviceType, count: int) -> Capability:
        """`C_i` when it holds `count` devices of the type."""
        speeds = dict(self.speeds)[kind]
        return Capability(kind, speeds[min(count, len(speeds)) - 1])

    def sorted(self, counts: Mapping[DeviceType, int]) -> Counts:
        """Counts in the job's own order of types, without zeros."""
        return tuple((kind, counts[kind]) for kind, _ in self.speeds if counts.get(kind))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a proposal must keep to."""

    max_waste: float
    growth: float
    top_k: int
    mixed: bool
    """Whether devices of several types may work together."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """More devices of one type for a job, and what they would bring."""

    plan: Configuration
    kind: DeviceType
    more: int
    gain: float
    """Speed-up by each of them, as a share of today's speed."""

    @property
    def rank(self) -> tuple[float, int]:
        """Smallest first: highest gain a device, then most devices. Gains that differ by rounding are the same."""
        return -round(self.gain, 9), -self.more


def outlook_of(spec: JobSpec, kinds: Collection[DeviceType], *, linear: bool = False) -> Outlook:
    """The job's figures on some types of device, from its scaling curves.

    `linear`: only the speed of one device is known, and more are taken to be as fast each. A job that does not say of
    how many virtual workers it is made has as many as it may have devices, or as were requested for it: its maxP.
    """
    virtual_workers = max(spec.virtual_workers or spec.max_workers or spec.requested_workers, spec.min_workers)
    most = min(virtual_workers, spec.max_workers or virtual_workers)
    curves = tuple((kind, curve) for kind, curve in spec.curves if kind in kinds)
    return _outlook(curves, virtual_workers, spec.min_workers, most, linear)


@lru_cache(maxsize=4096)
def _outlook(curves: Curves, virtual_workers: int, least: int, most: int, linear: bool) -> Outlook:
    speeds: list[tuple[DeviceType, tuple[float, ...]]] = []
    for kind, curve in curves:
        if linear:
            speeds.append((kind, (curve.rate(1) * virtual_workers,)))
        else:
            counts = range(1, most + 1)
            speeds.append((kind, tuple(curve.rate(n) * -(-virtual_workers // n) for n in counts)))
    return Outlook(virtual_workers, least, most, tuple(speeds))


@lru_cache(maxsize=1 << 16)
def plan_on(outlook: Outlook, counts: Counts) -> Configuration:
    """The fastest plan on these devices, less those that would have nothing to do."""
    capabilities = [outlook.capability(kind, count) for kind, count in counts]
    plan = top_plan(outlook.virtual_workers, capabilities, counts)
    lean = released(plan, capabilities, outlook.min_devices)
    # Fewer devices of a type may each be faster or slower than more of them: only a plan that holds for itself counts.
    return lean if lean.counts == counts else _not_slower(plan, plan_on(outlook, lean.counts))


def _not_slower(plan: Configuration, lean: Configuration) -> Configuration:
    return lean if lean.rate >= plan.rate * (1 - SAME) else plan


def start_plan(outlook: Outlook, free: Mapping[DeviceType, int], limits: Limits) -> Configuration | None:
    """The least that a waiting job can start on: one type, preferred first; mixed only where none alone is enough."""
    wasteful: Configuration | None = None
    for kind in outlook.kinds:
        for count in range(outlook.min_devices, min(free.get(kind, 0), outlook.max_devices) + 1):
            plan = plan_on(outlook, ((kind, count),))
            if plan.waste_norm <= limits.max_waste + SAME and plan.num_devices == count:
                return plan
            wasteful = wasteful or plan
    return wasteful or (_mixed_start(outlook, free) if limits.mixed else None)


def _mixed_start(outlook: Outlook, free: Mapping[DeviceType, int]) -> Configuration | None:
    taken: dict[DeviceType, int] = {}
    needed = outlook.min_devices
    for kind in outlook.kinds:
        taken[kind] = min(needed, free.get(kind, 0))
        needed -= taken[kind]
    return None if needed else plan_on(outlook, outlook.sorted(taken))


def proposals(
    outlook: Outlook,
    now: Configuration,
    free: Mapping[DeviceType, int],
    limits: Limits,
    barred: Collection[Counts] = (),
) -> tuple[Proposal, ...]:
    """The best `top_k` ways to grow into what is free, best first."""
    held = dict(now.counts)
    most = min(outlook.max_devices, int(now.num_devices * limits.growth)) - now.num_devices
    kinds = outlook.kinds if limits.mixed else tuple(kind for kind, _ in now.counts)
    found: list[Proposal] = []
    for kind in kinds:
        for more in range(1, min(most, free.get(kind, 0)) + 1):
            plan = plan_on(outlook, outlook.sorted(held | {kind: held.get(kind, 0) + more}))
            gain = (plan.rate / now.rate - 1) / more
            wanted = dict(plan.counts).get(kind, 0) == held.get(kind, 0) + more
            if wanted and gain > SAME and plan.waste_norm <= limits.max_waste + SAME and plan.counts not in barred:
                found.append(Proposal(plan, kind, more, gain))
    return tuple(sorted(found, key=lambda proposal: proposal.rank)[: limits.top_k])
