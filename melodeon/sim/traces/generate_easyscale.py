"""Workloads like the one of EasyScale's trace experiment, for where the published file is not at hand.

Its eight models in about the shares of the published workload, sizes and preferred types likewise, Poisson arrivals,
log-normal run times (many short jobs, a few long ones, as in Microsoft's clusters). The same seed gives the same
workload. Drawn, not recorded: figures on it show the shape of a result, not the paper's numbers.
"""

import random
from dataclasses import dataclass
from typing import TypeVar

from melodeon.core.cluster import DeviceType
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.sim.traces.easyscale_speeds import APPLICATIONS, P100, T4, V100, easyscale_job, preferring
from melodeon.sim.traces.rows import Trace

Value = TypeVar("Value")

MIX = (
    ("electra", 0.26),
    ("bert", 0.24),
    ("resnet50", 0.20),
    ("yolov3", 0.10),
    ("ncf", 0.08),
    ("swintransformer", 0.05),
    ("shufflenetv2", 0.04),
    ("vgg19", 0.03),
)
"""Models, and the share of jobs that train them."""
PREFERRED = ((V100, 0.75), (P100, 0.20), (T4, 0.05))
SIZES: dict[DeviceType, tuple[tuple[int, float], ...]] = {
    V100: ((8, 0.1), (16, 0.25), (32, 0.65)),
    P100: ((8, 0.4), (16, 0.6)),
    T4: ((8, 1.0),),
}
"""Virtual workers by preferred type: never more than there are devices of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyScaleWorkload:
    """What to draw."""

    num_jobs: int = 68
    mean_gap_s: float = 70.0
    """Mean time between two submissions."""
    median_run_s: float = 90.0
    """On all the devices that the job can use, of its preferred type."""
    spread: float = 1.2
    """Standard deviation of the logarithm of the run times."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_jobs < 1 or self.mean_gap_s <= 0 or self.median_run_s <= 0 or self.spread < 0:
            raise UsageError(
                f"jobs={self.num_jobs}, gap={self.mean_gap_s:g}, run time={self.median_run_s:g} and "
                f"spread={self.spread:g} cannot be drawn: the first three must be above 0, the spread not negative"
            )


def generate_easyscale(spec: EasyScaleWorkload) -> Trace:
    """Draw a workload."""
    draw = random.Random(spec.seed)
    now_s = 0.0
    jobs = []
    for index in range(spec.num_jobs):
        name = _drawn(draw, MIX)
        application = APPLICATIONS[name]
        preferred = _drawn(draw, PREFERRED)
        virtual_workers = _drawn(draw, SIZES[preferred])
        kinds = preferring(preferred, mixes=application.mixes)
        rates = {kind: application.rate(kind, application.batch_size) for kind in kinds}
        run_s = spec.median_run_s * draw.lognormvariate(0.0, spec.spread)
        jobs.append(
            easyscale_job(
                JobId(f"{name}-{index}"),
                name,
                rates,
                submit_s=now_s,
                virtual_workers=virtual_workers,
                batch_size=application.batch_size,
                iterations=run_s * rates[preferred],
            )
        )
        now_s += draw.expovariate(1 / spec.mean_gap_s)
    return Trace(f"easyscale-{spec.seed}", tuple(jobs))


def _drawn(draw: random.Random, weighted: tuple[tuple[Value, float], ...]) -> Value:
    return draw.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]
