"""Goodput (Pollux): throughput times statistical efficiency, when a job may change its batch size.

A curve is measured at one batch size `B`. For another, `M`, the part of a step that grows with the batch is added:

    step(n, M) = step(n, B) + compute * step(1, B) * (M - B) / (B * n)
    efficiency(M) = (noise + B) / (noise + M)             progress of an example at M over that at B
    goodput(n, M) = M / B * efficiency(M) / step(n, M)    iterations of size B that a second is worth

`noise` is the gradient noise scale in examples, taken as constant over the job's life (Pollux measures it as it goes).
"""

from dataclasses import dataclass

from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError

COMPUTE = 0.9
"""The part of a step on one device that grows with the batch, where it was not measured."""
NOISE = 4.0
"""The gradient noise scale over the batch size, where it was not measured: doubling the batch costs a sixth of it."""
LARGEST = 8
"""The largest batch over the job's own, where nobody said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How a job's progress depends on its batch size."""

    batch_size: int
    """The global batch size that the job's curves and iterations are for."""
    noise_scale: float
    min_batch_size: int
    max_batch_size: int
    compute: float = COMPUTE

    def __post_init__(self) -> None:
        if not 1 <= self.min_batch_size <= self.batch_size <= self.max_batch_size:
            raise UsageError(
                f"batch size {self.batch_size} must lie between {self.min_batch_size} and {self.max_batch_size}, and "
                "the least must be at least 1"
            )
        if self.noise_scale < 0 or not 0 <= self.compute <= 1:
            raise UsageError(f"{self}: the noise scale must not be negative, and compute is a share from 0 to 1")

    @classmethod
    def assumed(cls, batch_size: int) -> "Goodput":
        """The documented defaults, for a job of which only the batch size is known."""
        return cls(
            batch_size=batch_size,
            noise_scale=NOISE * batch_size,
            min_batch_size=batch_size,
            max_batch_size=LARGEST * batch_size,
        )

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes to choose from: doublings of the smallest, and the job's own."""
        sizes = {self.batch_size}
        size = self.min_batch_size
        while size <= self.max_batch_size:
            sizes.add(size)
            size *= 2
        return tuple(sorted(sizes))

    def rate(self, curve: ScalingCurve, workers: int, batch_size: int, *, scattered: bool = False) -> float:
        """Iterations a second, of the job's own batch size, that `workers` at another batch size are worth."""
        step_s = 1 / curve.rate(workers, scattered=scattered)
        extra_s = self.compute / curve.rate(1) * (batch_size / self.batch_size - 1) / workers
        # Faster than linear scaling would leave nothing of a step at a very small batch.
        step_s = max(step_s + extra_s, step_s * min(1.0, batch_size / self.batch_size))
        efficiency = (self.noise_scale + self.batch_size) / (self.noise_scale + batch_size)
        return batch_size / self.batch_size * efficiency / step_s

    def best(self, curve: ScalingCurve, workers: int) -> tuple[int, float]:
        """The batch size with the highest goodput on `workers`, and that goodput; equal ones: the job's own or less."""
        own = (self.batch_size, curve.rate(workers))
        return max([own, *((m, self.rate(curve, workers, m)) for m in self.batch_sizes)], key=lambda pair: pair[1])
