"""Traces of our own: Poisson arrivals, Philly-like lengths and sizes, deadlines of drawn tightness.

The iterations of a job are its duration times its rate on the devices it requests; its deadline is `tightness`
durations after its submission, as in ElasticFlow's evaluation. The same seed gives the same trace.
"""

import random
from dataclasses import dataclass

from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.sim.traces.linear import linear_curves, scaled
from melodeon.sim.traces.rows import MOST, Trace
from melodeon.sim.traces.throughputs import Throughputs

TIGHTNESS = (0.5, 1.5)
PHILLY_WORKERS = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.04), (16, 0.01))
"""Devices requested, and the share of jobs that do; most jobs of the Philly trace want one."""

EVEN_WORKERS = ((1, 0.25), (2, 0.25), (4, 0.25), (8, 0.25))
KINDS: dict[str, dict[str, object]] = {
    "poisson": {"workers": EVEN_WORKERS, "spread": 0.5},
    "philly": {},
}
"""Traces by name: `poisson` has sizes from 1 to 8 alike and lengths near the median, `philly` what `TraceSpec` says."""


MOST_JOBS = 1_000_000
"""No more are drawn: a slip of the finger would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpec:
    """What to draw."""

    num_jobs: int
    mean_gap_s: float = 900.0
    """Mean time between two submissions."""
    median_duration_s: float = 3600.0
    spread: float = 1.2
    """Standard deviation of the logarithm of the durations: long tails, as in Philly."""
    tightness: tuple[float, float] = TIGHTNESS
    best_effort: float = 0.0
    """Share of jobs without a deadline."""
    workers: tuple[tuple[int, float], ...] = PHILLY_WORKERS
    seed: int = 0

    def __post_init__(self) -> None:
        lengths = (self.mean_gap_s, self.median_duration_s)
        if self.num_jobs < 1 or not all(0 < value <= MOST for value in lengths) or not 0 <= self.spread <= MOST:
            raise UsageError(
                f"jobs={self.num_jobs}, gap={self.mean_gap_s:g}, duration={self.median_duration_s:g} and "
                f"spread={self.spread:g} cannot be drawn: the first three must be above 0, the spread not negative, "
                f"and none above {MOST:g}"
            )
        if self.num_jobs > MOST_JOBS:
            raise UsageError(f"jobs={self.num_jobs} are too many to draw: at most {MOST_JOBS:,} can be")
        if not 0 <= self.best_effort <= 1:
            raise UsageError(f"best-effort={self.best_effort:g} is a share of jobs: it must be between 0 and 1")
        low, high = self.tightness
        if not 0 < low <= high <= MOST:
            raise UsageError(f"tightness={low:g}-{high:g} must be two numbers above 0, the lower first, up to {MOST:g}")


def generate(spec: TraceSpec, throughputs: Throughputs) -> Trace:
    """Draw a trace."""
    draw = random.Random(spec.seed)
    sizes, weights = zip(*spec.workers, strict=True)
    now_s = 0.0
    jobs: list[JobSpec] = []
    for index in range(spec.num_jobs):
        duration_s = spec.median_duration_s * draw.lognormvariate(0.0, spec.spread)
        workers = draw.choices(sizes, weights)[0]
        best_effort = draw.random() < spec.best_effort
        jobs.append(
            made_job(
                draw,
                throughputs,
                job=JobId(f"job{index:05d}"),
                submit_s=now_s,
                duration_s=duration_s,
                workers=workers,
                tightness=None if best_effort else spec.tightness,
            )
        )
        now_s += draw.expovariate(1 / spec.mean_gap_s)
    return Trace(f"generated-{spec.seed}", tuple(jobs))


def made_job(
    draw: random.Random,
    throughputs: Throughputs,
    *,
    job: JobId,
    submit_s: float,
    duration_s: float,
    workers: int,
    tightness: tuple[float, float] | None,
    iterations: float | None = None,
    model: str = "",
    user: str = "",
) -> JobSpec:
    """A job of known length with a drawn model and deadline; without tightness it is best effort.

    Known iterations are kept, and the curve is stretched until they take `duration_s` on `workers` devices. A known
    model is drawn among its own batch sizes; one without a table gets the curve of a drawn one and keeps its name.
    """
    settings = throughputs.settings_of(model) or throughputs.settings
    name, batch_size = draw.choice(settings) if settings else (model, 0)
    curves = throughputs.curves[name, batch_size] if settings else linear_curves(throughputs.kinds, workers)
    deadline_s = submit_s + duration_s * draw.uniform(*tightness) if tightness else None
    if iterations is not None:
        curves = scaled(curves, workers, iterations / duration_s)
    return JobSpec(
        id=job,
        submit_s=submit_s,
        iterations=duration_s * curves[0][1].rate(workers) if iterations is None else iterations,
        curves=curves,
        deadline_s=deadline_s,
        goal=Goal.BEST_EFFORT if deadline_s is None else Goal.HARD,
        requested_workers=workers,
        user=user,
        model=model or name,
        batch_size=batch_size,
        duration_s=duration_s,
    )
