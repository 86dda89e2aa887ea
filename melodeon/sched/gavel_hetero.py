"""Gavel extended with heterogeneous allocations, as VirtualFlow does: one job over several device types.

The linear program may also give a job time on half as many devices of each of two types. What a round then leaves idle
is added to running jobs, of any type, where it speeds them up most for what they have; it is taken back as soon as
somebody else can run on it, so at high load this is Gavel. Speeds of mixtures are careful estimates from the curves
(`hetero.mixed_rate`), and a job grows only if that gains more within a round than the change costs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import share
from melodeon.sched.hetero import mixed_rate
from melodeon.sched.offers import with_mixtures
from melodeon.sched.policy import Decision, check_period
from melodeon.sched.timeshares import next_turn, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelHetero:
    """The policy, with its options."""

    round_s: float = 360.0
    min_gain: float = 0.05
    """Idle devices are added only where they make a job faster by this share."""

    def __post_init__(self) -> None:
        check_period("round_s", self.round_s)
        if self.min_gain < 0:
            raise UsageError(f"min_gain={self.min_gain} must not be negative: 0 moves a job for any gain")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Who runs in this round, on which types."""
        offers = {job.spec.id: with_mixtures(view, job.spec) for job in view.admitted}
        turn = next_turn(view, state, self.round_s, offers)
        wider = self._grown(view, turn.given, turn.free)
        shares: dict[JobId, Share] = {}
        for job_id, counts in turn.given.items():
            why = reason(turn.ledger, view.jobs[job_id], counts)
            if wider[job_id] != counts:
                why += "; idle devices were added"
            shares.update([share(view.jobs[job_id], wider[job_id], why)])
        return Decision(shares, turn.ledger, turn.wake_at)

    def _grown(self, view: ClusterView, given: dict[JobId, Counts], free: dict[DeviceType, int]) -> dict[JobId, Counts]:
        """Add idle devices: first what jobs have already, then where the relative gain is largest."""
        wider = dict(given)
        for job_id, counts in given.items():
            extra = _extra(view.jobs[job_id].counts, counts)
            if extra and all(count <= free.get(kind, 0) for kind, count in extra.items()):
                wider[job_id] = _plus(counts, extra)
                for kind, count in extra.items():
                    free[kind] -= count
        while best := max(self._steps(view, wider, free), key=lambda step: step[0], default=None):
            _, job_id, kind, count = best
            wider[job_id] = _plus(wider[job_id], {kind: count})
            free[kind] -= count
        return wider

    def _steps(
        self, view: ClusterView, wider: dict[JobId, Counts], free: dict[DeviceType, int]
    ) -> Iterator[tuple[float, JobId, DeviceType, int]]:
        """(gain, job, type, devices) of every addition that pays."""
        idle = [kind for kind, count in free.items() if count]
        for job_id, counts in wider.items() if idle else ():
            job = view.jobs[job_id]
            total, rate = sum(count for _, count in counts), mixed_rate(job.spec, counts)
            for kind in idle:
                count = min(1 << (free[kind].bit_length() - 1), job.spec.requested_workers)
                if job.spec.curve(kind) is None or total + count > (job.spec.max_workers or total + count):
                    continue
                gain = mixed_rate(job.spec, _plus(counts, {kind: count})) / rate - 1
                if gain > self._least_gain(view, job, counts, total + count):
                    yield gain, job_id, kind, count

    def _least_gain(self, view: ClusterView, job: JobState, counts: Counts, total: int) -> float:
        pause_s = view.overheads.pause_s(job.spec.model, total) if job.counts == counts else 0.0
        return max(self.min_gain, pause_s / max(self.round_s - pause_s, 1e-9))


def _extra(held: Counts, counts: Counts) -> dict[DeviceType, int]:
    """What a job holds beyond an offer; empty where it does not hold all of that."""
    over = dict(held)
    for kind, count in counts:
        if over.get(kind, 0) < count:
            return {}
        over[kind] -= count
    return {kind: count for kind, count in over.items() if count}


def _plus(counts: Counts, extra: dict[DeviceType, int]) -> Counts:
    total = dict(counts)
    for kind, count in extra.items():
        total[kind] = total.get(kind, 0) + count
    return tuple(total.items())
