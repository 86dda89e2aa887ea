"""Pollux: shares that maximise the mean speed-up in goodput, fair by a power mean, found by a seeded local search.

    speedup_j(n) = goodput_j(n) / goodput_j(fair share),   goodput_j(n) = the best over batch sizes
    fitness = (mean of speedup_j ** p) ** (1 / p)          p = 1: efficiency alone; the lower, the fairer

A changed share is discounted for the restart that it costs, `(age - restarts * pause) / (age + pause)`. Pollux searches
matrices of jobs and nodes; here placement is a layer of its own, so the search is over counts. The fitness is a
sum over jobs, so that a move is judged in constant time. Goodput here changes only with events, so there is no timer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.goodput import Goodput
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share
from melodeon.sched.estimate import ladders
from melodeon.sched.policy import Decision
from melodeon.sched.search import Choice, improve, raised

STARVED = 0.02
"""The speed-up that a waiting job is counted with under a negative power: that of 0 would be infinite."""
PER_JOB = 40
"""Moves tried for each job, up to `Pollux.moves` in all."""

MOST_POWER = 50.0
"""Beyond it, powers of speed-ups are no numbers any more; the mean is the largest or the least long before."""


class _Option(NamedTuple):
    """One size that a job may get."""

    workers: int
    batch_size: int
    goodput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """The policy, with its options."""

    power: float = -1.0
    """`p` of the power mean; Pollux's own evaluation uses -1."""
    assume: bool = False
    """Let jobs that say nothing about batch sizes change theirs too, with the defaults of `core.goodput`."""
    moves: int = 4000
    """The most moves that the search tries in one round."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.power == 0 or abs(self.power) > MOST_POWER or self.moves < 0:
            raise UsageError(
                f"power={self.power:g} must lie between -{MOST_POWER:g} and {MOST_POWER:g} and not be 0, and "
                f"moves={self.moves} must not be negative: -1 and 4000 are usual"
            )

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The best shares found; `state` counts every job's restarts."""
        before: Mapping[JobId, int] = state if isinstance(state, Mapping) else {}
        shares: dict[JobId, Share] = {}
        for kind, jobs in _homes(view).items():
            shares.update(self._divide(view, kind, jobs, before))
        restarts = {
            job.spec.id: before.get(job.spec.id, 0) + (job.started_s is not None and _counts(shares, job) != job.counts)
            for job in view.admitted
        }
        return Decision(shares, restarts)

    def _divide(
        self, view: ClusterView, kind: DeviceType, jobs: list[JobState], before: Mapping[JobId, int]
    ) -> dict[JobId, Share]:
        """Share out one type of device."""
        capacity = view.cluster.count(kind)
        options = [self._options(view, job.spec, kind) for job in jobs]
        choices: list[Choice] = []
        for job, sizes in zip(jobs, options, strict=True):
            even = [option for option in sizes if option.workers <= capacity // len(jobs)] or sizes[:1]
            fair = max(option.goodput for option in even)
            values = [self._value(STARVED if self.power < 0 else 0.0)]
            for option in sizes:
                kept = _kept_part(view, job, kind, option.workers, before.get(job.spec.id, 0))
                # However much its restarts have cost it: to run is better than to wait.
                values.append(self._value(max(2 * STARVED, option.goodput / fair * kept)))
            held = next((n + 1 for n, option in enumerate(sizes) if option.workers == job.held(kind)), 0)
            choices.append(Choice((0, *(option.workers for option in sizes)), tuple(values), held))
        draw = Random(self.seed)
        moves = min(self.moves, PER_JOB * len(jobs))
        starts = [raised(choices, capacity, [0] * len(choices)), raised(choices, capacity, [c.held for c in choices])]
        picked = max((improve(choices, capacity, start, draw, moves) for start in starts), key=lambda found: found[0])
        shares: dict[JobId, Share] = {}
        for job, sizes, level in zip(jobs, options, picked[1], strict=True):
            if level:
                option = sizes[level - 1]
                why = f"goodput of {option.goodput:.3g} iterations/s"
                if option.batch_size:
                    why += f" at batch size {option.batch_size}"
                why += f", fair by a power of {self.power:g}"
                counts = ((kind, option.workers),)
                shares[job.spec.id] = Share(job.spec.id, counts, why, batch_size=option.batch_size)
        return shares

    def _options(self, view: ClusterView, spec: JobSpec, kind: DeviceType) -> list[_Option]:
        ladder, curve = spec.ladder(kind), spec.curve(kind)
        assert ladder is not None, "homes have a ladder"
        assert curve is not None, "and with it a curve"
        model = spec.goodput or (Goodput.assumed(spec.batch_size) if self.assume and spec.batch_size else None)
        found: list[_Option] = []
        for workers, rate in zip(ladder.levels, ladder.rates, strict=True):
            if workers <= view.cluster.count(kind):
                batch_size, goodput = model.best(curve, workers) if model else (0, rate)
                found.append(_Option(workers, batch_size, goodput))
        return found

    def _value(self, speedup: float) -> float:
        """What a job adds to the fitness: the mean grows with the sum of these."""
        return float(speedup**self.power) if self.power > 0 else -float(speedup**self.power)


def _homes(view: ClusterView) -> dict[DeviceType, list[JobState]]:
    """The type that each job runs on: the one it holds, else the one with most devices for each job."""
    homes: dict[DeviceType, list[JobState]] = {}
    for job in view.admitted:
        kinds = [kind for kind, _ in ladders(view, job.spec)]
        held = [kind for kind in kinds if job.held(kind)]
        if kinds:
            home = held[0] if held else min(kinds, key=lambda k: (len(homes.get(k, ())) + 1) / view.cluster.count(k))
            homes.setdefault(home, []).append(job)
    return homes


def _kept_part(view: ClusterView, job: JobState, kind: DeviceType, workers: int, restarts: int) -> float:
    """Pollux's restart penalty: what is left of a speed-up if the share changes."""
    if job.started_s is None or job.held(kind) == workers:
        return 1.0
    age_s = view.now_s - job.spec.submit_s
    pause_s = view.overheads.pause_s(job.spec.model, workers)
    return max(0.0, (age_s - restarts * pause_s) / (age_s + pause_s)) if age_s + pause_s > 0 else 1.0


def _counts(shares: Mapping[JobId, Share], job: JobState) -> object:
    share = shares.get(job.spec.id)
    return share.counts if share else ()
