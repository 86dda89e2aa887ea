"""VirtualFlow's heterogeneous solver: how to split one batch over devices of several types.

    minimise   max over used types i of  t_i(m_i) * v_i + comm
    such that  sum of n_i * b_i = B,  b_i = v_i * m_i,  n_i <= devices of type i

`t_i(m)` is the measured time of one virtual worker's batch of `m` on type `i`. As in the paper only powers of two and
the mid-points between them are tried, for `m` and for `b`; `n_i` is a power of two or all devices. One type alone is
among the candidates, so the answer is never slower than the best of those, and it falls back to one type unless mixing
gains at least `min_gain`. The search is exact over these candidates: a table of batch covered -> best split, type
after type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobSpec

StepTimes = Mapping[int, float]
"""Batch size -> seconds of one virtual worker on one device."""


@dataclass(frozen=True, slots=True)
class Part:
    """What every used device of one type does in a step."""

    kind: DeviceType
    num_devices: int
    virtual_workers: int
    """On each device, one after the other."""
    batch: int
    """Samples of one virtual worker."""
    seconds: float
    """Computing time of a step."""

    @property
    def samples(self) -> int:
        """Samples that the type trains in a step, over all its devices."""
        return self.num_devices * self.virtual_workers * self.batch


@dataclass(frozen=True, slots=True)
class Split:
    """A whole step."""

    parts: tuple[Part, ...]
    step_s: float
    """Of the slowest type, with communication."""


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two and the mid-points between them."""
    found: list[int] = []
    power = 1
    while power <= most:
        found.append(power)
        if power > 1 and power * 3 // 2 <= most:
            found.append(power * 3 // 2)
        power *= 2
    return found


def solve(
    batch: int,
    devices: Mapping[DeviceType, int],
    profiles: Mapping[DeviceType, StepTimes],
    *,
    comm_s: float = 0.0,
    min_gain: float = 0.0,
) -> Split | None:
    """The fastest split of `batch` samples; None: no candidate covers it exactly.

    `comm_s` is added where more than one device takes part; a mixed split must be faster than one type by the factor
    `1 + min_gain`.
    """
    if batch < 1:
        raise UsageError(f"batch={batch} must be at least 1 sample")
    if comm_s < 0 or min_gain < 0:
        raise UsageError(f"comm_s={comm_s} and min_gain={min_gain} must not be negative")
    parts = [_parts(kind, count, profiles.get(kind, {}), batch) for kind, count in devices.items() if count > 0]
    homogeneous = (_split([part], comm_s) for found in parts for part in found if part.samples == batch)
    alone = min(homogeneous, key=lambda split: split.step_s, default=None)
    covered = _cover(batch, parts)
    mixed = _split(covered, comm_s) if covered else None
    if alone is None or mixed is None:
        return alone or mixed
    return mixed if mixed.step_s * (1 + min_gain) < alone.step_s else alone


def mixed_rate(spec: JobSpec, counts: Counts) -> float:
    """Iterations a second on several types, where there is no profile: each device as fast as in a group of that size.

    Careful where the curves bend: twice as many devices pay for a group twice as large, whatever their types.
    """
    total = sum(count for _, count in counts)
    curves = [(spec.curve(kind), count) for kind, count in counts]
    return sum(curve.rate(total) * count / total for curve, count in curves if curve is not None)


def _parts(kind: DeviceType, count: int, times: StepTimes, batch: int) -> list[Part]:
    """Every load that devices of the type can take, each in its fastest way."""
    bad = next(((size, t) for size, t in times.items() if size < 1 or not isfinite(t) or t <= 0), None)
    if bad is not None:
        raise UsageError(f"{kind} profile has {bad[1]} s for a batch of {bad[0]}: both must be above 0")
    sizes = sizes_up_to(batch)
    measured = [(size, times[size]) for size in sizes if size in times]
    groups = sorted({1 << k for k in range(count.bit_length())} | {count})
    found: list[Part] = []
    for load in sizes:
        seconds, size = min(((t * (load // size), size) for size, t in measured if load % size == 0), default=(0.0, 0))
        if size:
            found += [Part(kind, used, load // size, size, seconds) for used in groups if used * load <= batch]
    return found


def _cover(batch: int, types: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """The split of least computing time over any of the types; empty: there is none."""
    best: dict[int, tuple[float, tuple[Part, ...]]] = {0: (0.0, ())}
    for parts in types:
        fastest: dict[int, Part] = {}
        for part in parts:
            if part.samples not in fastest or part.seconds < fastest[part.samples].seconds:
                fastest[part.samples] = part
        grown = dict(best)
        for covered, (slowest, chosen) in best.items():
            for samples, part in fastest.items():
                total, seconds = covered + samples, max(slowest, part.seconds)
                if total <= batch and (total not in grown or seconds < grown[total][0]):
                    grown[total] = (seconds, (*chosen, part))
        best = grown
    return best[batch][1] if batch in best else ()


def _split(parts: Sequence[Part], comm_s: float) -> Split:
    talks = sum(part.num_devices for part in parts) > 1
    return Split(tuple(parts), max(part.seconds for part in parts) + (comm_s if talks else 0.0))
