"""Curves for jobs that nobody measured: twice the devices, twice the speed, up to a point.

Nothing is known of such a job but what it requested, so it may grow to 8 devices (one node of most clusters), or to
what it requested if that is more. Every type of device is taken to be as fast as any other.
"""

from functools import lru_cache

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Curves

LINEAR_TO = 8


@lru_cache(maxsize=4096)
def linear_curves(kinds: tuple[DeviceType, ...], workers: int, rate: float = 1.0) -> Curves:
    """A curve for each type with `rate` iterations a second on each device."""
    most = max(LINEAR_TO, workers)
    counts = sorted({workers, *(1 << k for k in range(most.bit_length()) if 1 << k <= most)})
    curve = ScalingCurve(tuple((count, rate * count) for count in counts))
    return tuple((kind, curve) for kind in kinds)


def scaled(curves: Curves, workers: int, rate: float) -> Curves:
    """Curves of the same shape that give `rate` on `workers` devices of the first type."""
    factor = rate / curves[0][1].rate(workers)
    return tuple(
        (
            kind,
            ScalingCurve(
                tuple((count, factor * speed) for count, speed in curve.points),
                tuple((count, factor * speed) for count, speed in curve.spread),
            ),
        )
        for kind, curve in curves
    )
