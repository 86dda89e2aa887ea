"""Scaling curves by what a job's speed depends on: given by its file, profiled before it is judged, measured later.

    given < profiled < measured      what is measured replaces what was profiled, and that what somebody wrote down

A curve is known at a few sizes. Between them it is interpolated; above them the gain of the last doubling is taken to
shrink, so that a job is offered one size more and shows what it makes of it; a size that turned out no faster than a
smaller one is struck, and with it all above. Only powers of two and the job's own bounds are ever considered.
"""

import hashlib
from collections.abc import Mapping
from math import log2

import msgspec

from melodeon.core.curve import ScalingCurve
from melodeon.core.spec import Spec

RANK = {"given": 0, "profiled": 1, "measured": 2}
DIFFERS = 0.05
"""A measured rate corrects the curve when it is off by more than this part of it."""
SLOWER = 0.98
"""A larger size is struck when it is slower than this part of a smaller one's rate: less is noise."""
FADING = 0.8
"""Each further doubling beyond what was measured is taken to gain this part of what the last one gained."""
HOPE, CAUTION = 1.9, 1.5
"""Gain of the first doubling where one size alone was measured: for jobs that promise nothing, and for promises."""
WORTH = 1.02
"""Below this gain a doubling is not worth a try."""


class Curve(msgspec.Struct, frozen=True):
    """What is known of one job on one type of device."""

    points: dict[int, float] = {}
    """Steps a second by workers."""
    sources: dict[int, str] = {}
    struck: tuple[int, ...] = ()
    """Sizes that are no faster than smaller ones."""

    def learn(self, points: Mapping[int, float], source: str, struck: tuple[int, ...] = ()) -> "Curve":
        """The curve with new points, where nothing better is known."""
        merged, sources = dict(self.points), dict(self.sources)
        for size, rate in points.items():
            if RANK[source] >= RANK[sources.get(size, "given")]:
                merged[size], sources[size] = rate, source
        return Curve(merged, sources, tuple(sorted({*self.struck, *struck})))


NOTHING = Curve()


class Known(msgspec.Struct, frozen=True):
    """All that is known under one signature."""

    by_type: dict[str, Curve] = {}
    steps_per_epoch: int | None = None
    virtual_workers: int | None = None


def signature_of(spec: Spec, script_digest: str) -> str:
    """What the speed of a job depends on, besides the type of device."""
    parts = [
        script_digest,
        *spec.run,
        f"virtual_workers={spec.virtual_workers}",
        f"order={spec.order}",
        f"determinism={spec.determinism}",
        f"threads={spec.threads}",
        *(f"{name}={value}" for name, value in sorted(spec.env.items())),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def sizes(least: int, most: int) -> tuple[int, ...]:
    """The sizes that are considered: the bounds, and the powers of two between them."""
    powers = {1 << k for k in range(most.bit_length()) if least <= 1 << k <= most}
    return tuple(sorted({least, most} | powers))


def scaling(curve: Curve, given: Mapping[int, float], least: int, most: int, *, promised: bool) -> ScalingCurve | None:
    """A whole curve from what is known; None: nothing is."""
    points = {**given, **curve.points}
    points = {size: rate for size, rate in points.items() if rate > 0 and size not in curve.struck}
    top = min(curve.struck, default=most + 1)
    wanted = [size for size in sizes(least, most) if size < top] or [least]
    if not points:
        return None
    known = sorted(points.items())
    whole = ScalingCurve(tuple(known))
    made: dict[int, float] = {}
    gain = _gain(known, promised)
    for size in wanted:
        if size <= known[-1][0]:
            made[size] = whole.rate(size)
        elif known[-1][0] in curve.points:
            # A curve that somebody wrote down is taken at its word: it ends where it ends.
            below = max(made.items(), default=known[-1])
            below = max(below, known[-1])
            gain = 1 + (gain - 1) * FADING
            if gain < WORTH:
                break
            made[size] = below[1] * gain ** _doublings(below[0], size)
    return ScalingCurve(tuple(sorted((made or dict(known[-1:])).items())))


def guessed(least: int, most: int) -> ScalingCurve:
    """A curve for a job of which nothing is known: its shape alone counts, until its speed has been measured."""
    return ScalingCurve(tuple((size, float(size) ** 0.9) for size in sizes(least, most)))


def corrections(known: Mapping[int, float], rates: Mapping[int, float]) -> dict[int, float]:
    """The measured rates that the curve does not have, or has wrong."""
    return {
        size: rate
        for size, rate in rates.items()
        if rate > 0 and (size not in known or abs(rate - known[size]) > DIFFERS * known[size])
    }


def slower(rates: Mapping[int, float], already: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that are slower than a smaller one, both measured."""
    best, found = 0.0, []
    for size, rate in sorted(rates.items()):
        if rate < best * SLOWER and size not in already:
            found.append(size)
        best = max(best, rate)
    return tuple(found)


def _gain(known: list[tuple[int, float]], promised: bool) -> float:
    if len(known) < 2:
        return 1 + ((CAUTION if promised else HOPE) - 1) / FADING
    (low, slow), (high, fast) = known[-2:]
    return float(max(1.0, min(2.0, (fast / slow) ** (1 / _doublings(low, high)))))


def _doublings(low: int, high: int) -> float:
    return log2(high / low)
