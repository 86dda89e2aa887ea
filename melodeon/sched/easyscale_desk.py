"""One round of EasyScale's inter-job scheduler: who holds what, what is free, and who gets it next.

Mutable, and private to one decision. Approving a proposal may free devices of another type that the job no longer
needs; then everybody proposes once more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.jobs import JobId
from melodeon.sched.easyscale_job import Limits, Outlook, Proposal, plan_on, proposals, start_plan
from melodeon.sched.easyscale_plan import Configuration


@dataclass(frozen=True, slots=True)
class Holding:
    """What a job has in this round, and why."""

    plan: Configuration
    why: str


class Desk:
    """Devices and jobs of one round."""

    def __init__(
        self,
        free: Mapping[DeviceType, int],
        outlooks: Mapping[JobId, Outlook],
        slower: Mapping[JobId, frozenset[Counts]],
        limits: Limits,
    ) -> None:
        self.free = dict(free)
        self.holdings: dict[JobId, Holding] = {}
        self._outlooks, self._slower, self._limits = outlooks, slower, limits
        self._closed: set[DeviceType] = set()
        """Types that a job waits for which could not start."""
        self._order = {name: index for index, name in enumerate(outlooks)}

    # --- keep ---

    def keep(self, jobs: Sequence[JobState]) -> None:
        """Running jobs hold on to their devices, as far as these are still there, and give back idle ones."""
        for job in jobs:
            outlook = self._outlooks[job.spec.id]
            there = {kind: min(count, self.free.get(kind, 0)) for kind, count in job.counts if kind in outlook.kinds}
            if sum(there.values()) >= outlook.min_devices:
                plan = plan_on(outlook, outlook.sorted(there))
                if plan.num_devices < job.num_devices:
                    why = f"it gives back what it cannot use and runs as fast on {plan}"
                else:
                    why = f"it keeps {plan}: nothing that is free speeds it up enough"
                self._set(job.spec.id, plan, why)

    def fall_back(self, job: JobId, before: Counts) -> bool:
        """Give a job what it had before it grew, if that is still there and of a type that it may have."""
        now, outlook = self.holdings.get(job), self._outlooks[job]
        has = dict(now.plan.counts) if now else {}
        # Before this policy took it over, it may have run on a type that it has left.
        lacks = any(kind not in outlook.kinds or n - has.get(kind, 0) > self.free.get(kind, 0) for kind, n in before)
        if now is None or lacks:
            return False
        plan = plan_on(outlook, outlook.sorted(dict(before)))
        self._set(job, plan, f"it goes back to {plan}: {now.plan} made it slower")
        return True

    # --- start ---

    def start(self, jobs: Sequence[JobState], *, guarantee: bool) -> None:
        """Waiting jobs in order of submission; what one that cannot start could use is kept from all later ones."""
        for place, job in enumerate(jobs):
            outlook = self._outlooks[job.spec.id]
            plan = start_plan(outlook, self._open, self._limits)
            may_take = guarantee and not self._closed.intersection(outlook.kinds)
            if plan is None and may_take and self._make_room(outlook):
                plan = start_plan(outlook, self._open, self._limits)
            if plan is None:
                self._closed.update(outlook.kinds)
            else:
                self._set(
                    job.spec.id, plan, f"number {place + 1} of the queue, and the least it runs on is free: {plan}"
                )

    def _make_room(self, outlook: Outlook) -> bool:
        """Take from jobs above their minimum until a newcomer has its own; nothing is taken if it is not enough."""
        pools = [outlook.kinds] if self._limits.mixed else [(kind,) for kind in outlook.kinds]
        for pool in pools:
            saved_free, saved_holdings = dict(self.free), dict(self.holdings)
            while sum(self.free.get(kind, 0) for kind in pool) < outlook.min_devices:
                taken = self._least_loss(pool)
                if taken is None:
                    self.free, self.holdings = saved_free, saved_holdings
                    break
                name, plan = taken
                self._set(name, plan, f"it gives up devices above its minimum for a job that waits, and keeps {plan}")
            else:
                return True
        return False

    def _least_loss(self, pool: Sequence[DeviceType]) -> tuple[JobId, Configuration] | None:
        """The job that loses the smallest share of its speed with one device less, and its plan then."""
        best: tuple[float, int, JobId, Configuration] | None = None
        for name, holding in self.holdings.items():
            outlook = self._outlooks[name]
            if holding.plan.num_devices <= outlook.min_devices:
                continue
            for kind, count in holding.plan.counts:
                if kind in pool:
                    plan = plan_on(outlook, outlook.sorted({**dict(holding.plan.counts), kind: count - 1}))
                    # Among equals, who came last.
                    entry = (1 - plan.rate / holding.plan.rate, -self._order[name], name, plan)
                    best = entry if best is None or entry[:2] < best[:2] else best
        return None if best is None else best[2:]

    # --- grow ---

    def grow(self, resting: Collection[JobId] = (), *, once: bool = False) -> None:
        """Algorithm 1: the best proposal first, as long as there are devices and proposals.

        `resting` jobs make none; with `once` a job makes no more after one was approved.
        """
        done = set(resting)
        while self._approve(done, once):
            pass

    def _approve(self, done: set[JobId], once: bool) -> bool:
        """One pass over everybody's proposals; whether it freed devices that others might want."""
        heap: list[tuple[tuple[float, int], int, int, int, JobId, Proposal]] = []
        version: dict[JobId, int] = dict.fromkeys(self.holdings, 0)

        def propose(name: JobId) -> None:
            version[name] += 1
            if name not in done:
                plan, slower = self.holdings[name].plan, self._slower.get(name, ())
                for place, offer in enumerate(proposals(self._outlooks[name], plan, self._open, self._limits, slower)):
                    heappush(heap, (offer.rank, self._order[name], place, version[name], name, offer))

        for name in self.holdings:
            propose(name)
        freed = False
        while heap and any(self._open.values()):
            _, _, _, made, name, offer = heappop(heap)
            if made != version[name]:
                continue
            if offer.more <= self._open.get(offer.kind, 0):
                freed = freed or offer.plan.num_devices < self.holdings[name].plan.num_devices + offer.more
                self._set(name, offer.plan, _approved(offer))
                if once:
                    done.add(name)
            propose(name)
        return freed

    @property
    def _open(self) -> dict[DeviceType, int]:
        """What is free and not kept for a job that waits."""
        return {kind: count for kind, count in self.free.items() if kind not in self._closed}

    def _set(self, name: JobId, plan: Configuration, why: str) -> None:
        old = self.holdings.get(name)
        for kind, count in old.plan.counts if old else ():
            self.free[kind] += count
        for kind, count in plan.counts:
            self.free[kind] -= count
            assert self.free[kind] >= 0, f"{name!r} takes {kind} devices that are not free"
        self.holdings[name] = Holding(plan, why)


def _approved(offer: Proposal) -> str:
    return (
        f"each of {offer.more} more {offer.kind} speeds it up by {offer.gain:.1%}, the best offer for them: "
        f"{offer.plan}, {offer.plan.waste_norm:.0%} wasted"
    )
