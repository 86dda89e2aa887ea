"""Scaling curves: a job's throughput, in iterations a second, against the number of workers.

A curve is a table of measured points. Between two points the rate is interpolated; past the last one it stays. What a
scheduler climbs is a `Ladder`: only the points at which one more step up makes the job faster.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from math import isfinite

from melodeon.core.errors import UsageError

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The worker counts worth giving to a job, ascending, each strictly faster than the one below."""

    levels: tuple[int, ...]
    rates: tuple[float, ...]
    """Iterations a second at each level."""
    floor: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """`floor[n]` is the number of levels that `n` workers reach; the last entry holds for every larger `n`."""
    _rate_of: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """`_rate_of[n]` is the rate of the highest level that `n` workers reach; likewise."""

    def __post_init__(self) -> None:
        top = self.levels[-1] if self.levels else 0
        floor = tuple(bisect_right(self.levels, n) for n in range(top + 1))
        object.__setattr__(self, "floor", floor)
        object.__setattr__(self, "_rate_of", tuple(self.rates[level - 1] if level else 0.0 for level in floor))

    def reach(self, workers: int) -> int:
        """How many levels `workers` reach: 0 when even the lowest is out of reach."""
        return self.floor[workers if workers < len(self.floor) else -1]

    def rate(self, workers: int) -> float:
        """The rate of the highest level that `workers` reach."""
        return self._rate_of[workers if workers < len(self._rate_of) else -1]


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Measured throughput by number of workers on one type of device."""

    points: Points
    """(workers, iterations a second), workers ascending; placed as compactly as the topology allows."""
    spread: Points = ()
    """The same when the workers are scattered over more nodes than they need; empty: placement does not matter."""
    _measured: dict[int, float] = field(init=False, repr=False, compare=False)
    """`points` to look up: schedulers mostly ask for what was measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_measured", dict(self.points))
        if not self.points:
            raise UsageError("a scaling curve has no point: give at least (1, iterations per second)")
        for points in (self.points, self.spread):
            for workers, rate in points:
                if workers < 1 or not isfinite(rate) or rate <= 0:
                    raise UsageError(
                        f"scaling point ({workers}, {rate}) must have at least 1 worker and a positive rate: leave out "
                        "counts that were not measured"
                    )
            counts = [workers for workers, _ in points]
            if counts != sorted(set(counts)):
                raise UsageError(f"scaling points for {counts} workers must ascend without repeats: sort the table")

    @classmethod
    def linear(cls, rate: float, max_workers: int) -> "ScalingCurve":
        """A job that runs `n` times as fast on `n` workers, at every power of two up to `max_workers`."""
        return cls(tuple((1 << k, rate * (1 << k)) for k in range(max_workers.bit_length()) if 1 << k <= max_workers))

    def rate(self, workers: int, *, scattered: bool = False) -> float:
        """Iterations a second on `workers` workers."""
        points = self.spread if scattered and self.spread else self.points
        if points is self.points and workers in self._measured:
            return self._measured[workers]
        if workers <= 0:
            return 0.0
        last_workers, last_rate = 0, 0.0
        for count, rate in points:
            if count == workers:
                return rate
            if count > workers:
                return last_rate + (rate - last_rate) * (workers - last_workers) / (count - last_workers)
            last_workers, last_rate = count, rate
        return last_rate

    def ladder(self, min_workers: int = 1, max_workers: int | None = None) -> Ladder:
        """The levels between the bounds at which more workers make the job faster."""
        levels: list[int] = []
        rates: list[float] = []
        counts = {workers for workers, _ in self.points} | {min_workers}
        for workers in sorted(counts):
            inside = workers >= min_workers and (max_workers is None or workers <= max_workers)
            rate = self.rate(workers)
            if inside and (not rates or rate > rates[-1]):
                levels.append(workers)
                rates.append(rate)
        return Ladder(tuple(levels), tuple(rates))
