"""Themis: finish-time fairness by auctions of leases.

A job's `rho` is its time from submission to its end as things go over the time it would need alone on an equal share
of the cluster; above 1 it is worse off than that. Devices are leased. When leases end, or devices are free, they are
offered to the part `1 - fairness` of jobs without a lease that have the worst rho; these bid `1 / rho` (`auction`),
and what is left goes to the others, worst rho first. By default a job takes what it requested or nothing; with
`elastic` it also bids for fewer devices, and winners pay as in a partial allocation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share
from melodeon.sched.auction import Bid, nash, partial
from melodeon.sched.gang import asked, share
from melodeon.sched.policy import Decision, check_period

EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class _Lease:
    counts: Counts
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class _Leases:
    by_job: Mapping[JobId, _Lease] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Themis:
    """The policy, with its options."""

    fairness: float = 0.8
    """How strictly the worst go first: this part of the jobs, those best off, is kept out of the auction."""
    lease_s: float = 1200.0
    elastic: bool = False

    def __post_init__(self) -> None:
        check_period("lease_s", self.lease_s)
        if not 0 <= self.fairness < 1:
            raise UsageError(f"fairness={self.fairness} must be in [0, 1): it is a share of the jobs")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Leases that last, an auction of the rest, and what that leaves to the others."""
        free = dict(view.cluster.capacity)
        leases = _lasting(view, state if isinstance(state, _Leases) else _Leases(), free)
        waiting = [job for job in view.admitted if job.spec.id not in leases]
        rho = {job.spec.id: self._rho(view, job) for job in waiting}
        waiting.sort(key=lambda job: (-rho[job.spec.id], job.spec.submit_s))
        seen = waiting[: ceil((1 - self.fairness) * len(waiting) - EPSILON) or 1]
        until_s = view.now_s + self.lease_s
        for kind in free:
            for job, count in self._auction(view, kind, free[kind], [j for j in seen if j.spec.id not in leases]):
                why = f"won in the auction of leases with a finish-time fairness of {rho[job.spec.id]:.2f}"
                leases[job.spec.id] = _Lease(((kind, count),), until_s, why)
                free[kind] -= count
        for job in waiting:
            counts = None if job.spec.id in leases else self._leftover(view, job, free)
            if counts is not None:
                why = f"left over from the auction; its finish-time fairness is {rho[job.spec.id]:.2f}"
                leases[job.spec.id] = _Lease(counts, until_s, why)
                free[counts[0][0]] -= counts[0][1]
        shares: dict[JobId, Share] = dict(
            share(view.jobs[job_id], lease.counts, lease.why) for job_id, lease in leases.items()
        )
        # Where nobody waits, leases are renewed without being asked for.
        crowded = len(leases) < len(view.admitted) and leases
        wake_at = min(lease.until_s for lease in leases.values()) if crowded else None
        return Decision(shares, _Leases(leases), wake_at)

    def _auction(
        self, view: ClusterView, kind: DeviceType, devices: int, jobs: list[JobState]
    ) -> list[tuple[JobState, int]]:
        bidders: list[JobState] = []
        bids: list[Bid] = []
        for job in jobs:
            counts = self._sizes(view, job.spec, kind)
            if counts:
                bidders.append(job)
                bids.append(self._bid(view, job, kind, counts))
        levels = partial(devices, bids) if self.elastic else nash(devices, bids)
        return [(job, bid.counts[level - 1]) for job, bid, level in zip(bidders, bids, levels, strict=True) if level]

    def _bid(self, view: ClusterView, job: JobState, kind: DeviceType, counts: tuple[int, ...]) -> Bid:
        """Values at each count; to win nothing is to wait for another lease and then to get the most."""
        curve = job.spec.curve(kind)
        assert curve is not None, "it only bids on types that it can run on"
        ideal_s, gone_s = _ideal_s(view, job), _gone_s(view, job)
        values = [ideal_s / (gone_s + job.remaining / curve.rate(count) + EPSILON) for count in counts]
        idle = ideal_s / (gone_s + self.lease_s + job.remaining / curve.rate(counts[-1]) + EPSILON)
        return Bid(idle, counts, tuple(values))

    def _sizes(self, view: ClusterView, spec: JobSpec, kind: DeviceType) -> tuple[int, ...]:
        if spec.curve(kind) is None:
            return ()
        most = min(asked(spec), view.cluster.count(kind))
        if most < spec.min_workers:
            return ()
        ladder = spec.ladder(kind)
        fewer = [n for n in ladder.levels if n < most] if self.elastic and ladder else []
        return (*fewer, most)

    def _leftover(self, view: ClusterView, job: JobState, free: dict[DeviceType, int]) -> Counts | None:
        fits = [
            (kind, max(sizes))
            for kind, _ in job.spec.curves
            if (sizes := [n for n in self._sizes(view, job.spec, kind) if n <= free.get(kind, 0)])
        ]
        best = next(((kind, n) for kind, n in fits if job.held(kind)), fits[0] if fits else None)
        return (best,) if best else None

    def _rho(self, view: ClusterView, job: JobState) -> float:
        """If it got from now on what it requests."""
        rates = [
            curve.rate(self._sizes(view, job.spec, kind)[-1])
            for kind, curve in job.spec.curves
            if self._sizes(view, job.spec, kind)
        ]
        return (_gone_s(view, job) + job.remaining / max(rates, default=EPSILON)) / _ideal_s(view, job)


def _lasting(view: ClusterView, leases: _Leases, free: dict[DeviceType, int]) -> dict[JobId, _Lease]:
    """Leases that have not ended and whose devices are still held; these leave `free`."""
    found: dict[JobId, _Lease] = {}
    for job in view.admitted:
        lease = leases.by_job.get(job.spec.id)
        if lease is None or lease.until_s <= view.now_s or job.counts != lease.counts:
            continue
        if all(count <= free.get(kind, 0) for kind, count in lease.counts):
            found[job.spec.id] = lease
            for kind, count in lease.counts:
                free[kind] -= count
    return found


def _gone_s(view: ClusterView, job: JobState) -> float:
    return max(0.0, view.now_s - job.spec.submit_s)


def _ideal_s(view: ClusterView, job: JobState) -> float:
    """The time of the whole job on an equal share of every type, at most what it requests."""
    rate = 0.0
    for kind, curve in job.spec.curves:
        fair = view.cluster.count(kind) / len(view.admitted)
        most = min(fair, asked(job.spec))
        rate += curve.rate(int(most)) if most >= 1 else curve.rate(1) * most
    return job.spec.iterations / max(rate, EPSILON)
