"""How fast EasyScale's eight models run on its three types of device, and jobs made of them.

Seconds a mini-batch on one device are those published for its figure 11, to two digits; they were taken at one batch
size each. At others a fifth of the time is taken not to depend on it (`FIXED`): an assumption, as the logs that its
simulator replayed are not published. Nothing is known of communication either, so `n` devices run `V` virtual workers
in `ceil(V / n)` turns, which is also what its simulator counts.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Curves, Goal, JobId, JobSpec

V100, P100, T4 = DeviceType("V100"), DeviceType("P100"), DeviceType("T4")
KINDS = (V100, P100, T4)
CLUSTER = "4x8:V100,8x2:P100,4x4:T4"
"""The 64 devices of its trace experiment."""
FIXED = 0.2
EPOCH_SHARE = 0.01
"""An epoch of its workload is a hundredth of the data set."""

IMAGENET, PASCAL, SQUAD, MOVIELENS = 1_281_167, 16_551, 88_641, 4_970_845


@dataclass(frozen=True, slots=True)
class Application:
    """One model and its data set."""

    samples: int
    batch_size: int
    """At which `seconds` were measured."""
    seconds: tuple[float, float, float]
    """One mini-batch on a V100, a P100 and a T4."""
    d2: tuple[float, float, float]
    """How many times as long it takes on each with kernels that give the same bits on all of them."""
    mixes: bool
    """Whether it needs no vendor convolutions, so that D2 is switched on for it."""

    def rate(self, kind: DeviceType, batch_size: int) -> float:
        """Mini-batches a second on one device."""
        return 1.0 / (self.seconds[KINDS.index(kind)] * (FIXED + (1 - FIXED) * batch_size / self.batch_size))


APPLICATIONS: dict[str, Application] = {
    "bert": Application(SQUAD, 8, (0.44, 0.61, 0.68), (1.0, 1.0, 1.0), True),
    "electra": Application(SQUAD, 8, (0.44, 0.61, 0.68), (1.0, 1.0, 1.0), True),
    "ncf": Application(MOVIELENS, 1024, (0.010, 0.014, 0.011), (1.04, 1.0, 1.08), True),
    "resnet50": Application(IMAGENET, 64, (0.25, 0.42, 0.61), (2.3, 2.8, 2.0), False),
    "shufflenetv2": Application(IMAGENET, 128, (0.22, 0.36, 0.40), (2.2, 2.4, 1.7), False),
    "swintransformer": Application(IMAGENET, 32, (0.41, 0.59, 0.60), (1.04, 1.0, 1.02), True),
    "vgg19": Application(IMAGENET, 32, (0.26, 0.38, 0.54), (4.4, 5.5, 4.2), False),
    "yolov3": Application(PASCAL, 8, (0.47, 0.70, 0.87), (1.2, 1.4, 1.2), False),
}


@lru_cache(maxsize=4096)
def stepped(rate: float, virtual_workers: int) -> ScalingCurve:
    """A job whose devices run `rate` virtual workers a second each: `n` of them take `ceil(V / n)` turns a step."""
    return ScalingCurve(tuple((n, rate / -(-virtual_workers // n)) for n in range(1, virtual_workers + 1)))


def easyscale_job(
    job: JobId,
    application: str,
    rates: dict[DeviceType, float],
    *,
    submit_s: float,
    virtual_workers: int,
    batch_size: int,
    iterations: float,
) -> JobSpec:
    """A job of the workload; `rates` are mini-batches a second on one device by type, preferred first."""
    curves: Curves = tuple((kind, stepped(rate, virtual_workers)) for kind, rate in rates.items())
    return JobSpec(
        id=job,
        submit_s=submit_s,
        iterations=iterations,
        curves=curves,
        goal=Goal.BEST_EFFORT,
        requested_workers=virtual_workers,
        max_workers=virtual_workers,
        model=application,
        batch_size=batch_size,
        duration_s=iterations / curves[0][1].rate(virtual_workers),
        virtual_workers=virtual_workers,
    )


def preferring(preferred: DeviceType, *, mixes: bool) -> tuple[DeviceType, ...]:
    """The types that a job can use: its own, and the others if its bits are the same there."""
    return (preferred, *(kind for kind in KINDS if kind != preferred and mixes))


def paying_d2(job: JobSpec) -> JobSpec:
    """The job when it runs on kernels that give the same bits on all its types; one that keeps to one type needs none.

    A job that may mix pays at every moment, also while it holds one type only: its bits must not depend on that.
    """
    application = APPLICATIONS.get(job.model)
    if len(job.curves) < 2 or application is None:
        return job
    factors = dict(zip(KINDS, application.d2, strict=True))
    slower = ((kind, tuple((n, rate / factors[kind]) for n, rate in curve.points)) for kind, curve in job.curves)
    return replace(job, curves=tuple((kind, ScalingCurve(points)) for kind, points in slower))
