"""VirtualFlow's elastic weighted fair sharing (its Algorithm 1): jobs are resized to their share by priority.

Running jobs first expand into what is free. Then waiting jobs are tried in order of priority: each joins if the fair
shares with it take nothing away from a running job of higher priority. The algorithm gives up where a fair share would
take something; here what such jobs hold is set aside first and the rest is shared, so that nothing stays idle.

With several device types a job stays on the one it started on; a newcomer goes where the least weight queues for each
device. Trades away: a job of low priority may wait as long as jobs of higher priority can use everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share
from melodeon.sched.fairshare import Claim, fair_shares
from melodeon.sched.gang import share
from melodeon.sched.policy import Decision

LIGHTEST = 1e-9
"""A job without weight still gets what nobody else can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wfs:
    """The policy, with its option."""

    beyond: bool = False
    """Let jobs grow past what they requested, up to the most devices that make them faster."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Fair shares on every device type."""
        shares: dict[JobId, Share] = {}
        for kind, jobs in _by_type(view).items():
            pool = _Pool(view.cluster.count(kind), kind, beyond=self.beyond)
            divided = pool.divide(jobs)
            for job, count in divided:
                why = f"its fair share by weight {job.spec.weight:g} among the {len(divided)} jobs that run on {kind}"
                shares.update([share(job, ((kind, count),), why)])
        return Decision(shares, state)


@dataclass(frozen=True, slots=True)
class _Pool:
    """The devices of one type."""

    capacity: int
    kind: DeviceType
    beyond: bool

    def divide(self, jobs: Sequence[JobState]) -> list[tuple[JobState, int]]:
        """Everyone who gets something, and how much."""
        inside = [job for job in jobs if job.counts]
        # What a job holds is kept or expanded while nobody waits.
        given = self._fair(inside, [self._held(job) for job in inside])
        if given is None:
            # Devices were lost: everybody lines up again, and shrinks as far as it can.
            inside, given = [], []
        kept = {job.spec.id for job in inside}
        waiting = sorted((job for job in jobs if job.spec.id not in kept), key=_by_priority)
        # Jobs of one weight take nothing from each other, so all of them can be tried at once.
        for weight, group in groupby(waiting, key=lambda job: job.spec.weight):
            least = [
                min(self._held(job), now) if job.spec.weight > weight and job.counts else 0
                for job, now in zip(inside, given, strict=True)
            ]
            left = self.capacity - sum(max(low, job.spec.min_workers) for low, job in zip(least, inside, strict=True))
            all_of_them = list(group)
            join = all_of_them[: sum(end <= left for end in accumulate(job.spec.min_workers for job in all_of_them))]
            found = self._fair([*inside, *join], [*least, *(0 for _ in join)]) if join else None
            if found is not None:
                inside, given = [*inside, *join], found
            if len(join) < len(all_of_them):
                break
        return list(zip(inside, given, strict=True))

    def _fair(self, jobs: Sequence[JobState], least: Sequence[int]) -> list[int] | None:
        claims = [
            Claim(max(job.spec.weight, LIGHTEST), max(low, job.spec.min_workers), max(low, self._most(job.spec)))
            for job, low in zip(jobs, least, strict=True)
        ]
        return fair_shares(self.capacity, claims)

    def _held(self, job: JobState) -> int:
        return min(job.held(self.kind), self._most(job.spec))

    def _most(self, spec: JobSpec) -> int:
        most = spec.requested_workers
        ladder = spec.ladder(self.kind)
        if self.beyond and ladder is not None:
            most = max(most, ladder.levels[-1])
        if spec.max_workers is not None:
            most = min(most, spec.max_workers)
        return max(spec.min_workers, min(most, self.capacity))


def _by_priority(job: JobState) -> tuple[float, float]:
    return (-job.spec.weight, job.spec.submit_s)


def _by_type(view: ClusterView) -> dict[DeviceType, list[JobState]]:
    """Which type each job is on, or would be; jobs that fit nowhere are left out."""
    jobs: dict[DeviceType, list[JobState]] = {kind: [] for kind, count in view.cluster.capacity if count}
    weight = dict.fromkeys(jobs, 0.0)
    waiting: list[JobState] = []
    for job in view.admitted:
        kind = next((kind for kind, _ in job.counts if kind in jobs), None)
        if kind is None:
            waiting.append(job)
        else:
            jobs[kind].append(job)
            weight[kind] += job.spec.weight
    for job in sorted(waiting, key=_by_priority):
        kinds = [k for k, _ in job.spec.curves if k in jobs and job.spec.min_workers <= view.cluster.count(k)]
        if kinds:
            kind = min(kinds, key=lambda kind: (weight[kind] + job.spec.weight) / view.cluster.count(kind))
            jobs[kind].append(job)
            weight[kind] += job.spec.weight
    return jobs
