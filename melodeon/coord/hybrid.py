"""Hybrid scaling (Elan's Algorithm 1): keep the total batch while more workers still help it, else double it.

`N_opt(k)` is the number of workers at which a total batch of `k` times the present one trains fastest. On growing from
N to N' workers the smallest k in 1, 2, 4, ... with N_opt(k) >= N' is taken, and never more than N'/N, so that no worker
gets more samples than before. The paper takes N_opt as known. Where a curve still rises at its last point, N_opt lies
beyond it: that batch is tried, as the paper tries strong scaling first, since a larger one has its price. The learning
rate follows the batch linearly over T steps. It changes the result, so it is asked for, and every change is recorded:
the same sequence of sizes gives the same batches and rates.
"""

from collections.abc import Mapping, Sequence

import msgspec

from melodeon.core.text import counted

Curves = Mapping[int, Mapping[int, float]]
"""Batch factor -> number of workers -> throughput (steps or samples a second; only the best of one factor matters)."""

GAIN = 1.05
"""More workers must be at least this much faster to be worth it; less is a curve that has levelled out."""


class HybridConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a job that allows it grows its batch."""

    max_factor: int = 64
    """The total batch never exceeds this many times the first one."""
    curves: dict[int, dict[int, float]] = {}
    """Batch factor -> workers -> throughput, known beforehand; a profile adds to it."""


class Decision(msgspec.Struct, frozen=True):
    """The batch factor to train with from the next view on, and why."""

    factor: int
    why: str


def best_size(curve: Mapping[int, float]) -> int:
    """The number of workers with the highest throughput; the smallest among equals."""
    return min(curve, key=lambda size: (-curve[size], size))


def still_rises(curve: Mapping[int, float]) -> bool:
    """Nothing says that more workers than were measured would not be faster still."""
    *fewer, most = sorted(curve)
    return curve[most] >= GAIN * max((curve[size] for size in fewer), default=0.0)


def decide(curves: Curves, factor: int, old_size: int, new_size: int, max_factor: int = 64) -> Decision:
    """The batch factor after a change from `old_size` to `new_size` workers."""
    if new_size <= old_size:
        return Decision(factor, f"{old_size} to {new_size} workers is no growth: the batch is kept")
    if new_size < 2 * old_size:
        return Decision(factor, f"{old_size} to {new_size} workers is less than twice as many: the batch is kept")
    if 2 * factor > max_factor:
        return Decision(factor, f"the batch may be at most {max_factor} times the first: it is kept")
    k = 1
    while 2 * k * old_size <= new_size and factor * k * 2 <= max_factor:
        curve = curves.get(factor * k)
        if not curve:
            if k == 1:
                return Decision(factor, f"no scaling curve is known for batch factor {factor}: the batch is kept")
            break
        if best_size(curve) >= new_size:
            break
        if still_rises(curve):
            if k == 1:
                why = (
                    f"batch factor {factor} still gains at {counted(max(curve), 'worker')}, and more were not measured"
                )
                return Decision(factor, f"{why}: the batch is kept")
            break
        k *= 2
    if k == 1:
        return Decision(factor, f"the present batch still gains up to {best_size(curves[factor])} workers: it is kept")
    why = f"batch factor {factor} is fastest with {best_size(curves[factor])} workers, fewer than {new_size}"
    return Decision(factor * k, f"{why}: the batch is multiplied by {k}")


def rate_factor(step: int, old: float, new: float, start: int, ramp_steps: int) -> float:
    """The learning rate's factor at `step`: linear from `old` at `start` to `new` at `start + ramp_steps`."""
    if step >= start + ramp_steps:
        return new
    if step <= start:
        return old
    return old + (new - old) * ((step - start) / ramp_steps)


def rate_at(step: int, history: Sequence[tuple[int, int]], ramp_steps: int) -> float:
    """The learning rate's factor at `step`, from the recorded (step, batch factor) changes, oldest first.

    A change that comes while the last ramp is still running starts from where that ramp has got to.
    """
    origin, target, start = 1.0, 1.0, 0
    for at, factor in history:
        if at > step:
            break
        origin = rate_factor(at, origin, target, start, ramp_steps)
        target, start = float(factor), at
    return rate_factor(step, origin, target, start, ramp_steps)
