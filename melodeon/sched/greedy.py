"""Greedy allocation by marginal return (ElasticFlow's Algorithm 2), with a heap and a closed form.

A job's reservation trains each iteration at `level / rate(level)` device-seconds. Devices given now train iterations
that the reservation then need not: going from `p` to `k` devices for a while `d` costs `(k - p) d` device-seconds and
saves `(rate(k) - rate(p)) d * level / rate(level)`. The marginal return, per device-second given, is

    (rate(k) - rate(p)) / (k - p) * level / rate(level) - 1

which does not depend on `d`, so a heap of the next step of every job gives the allocation in O(steps log jobs).
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from melodeon.core.curve import Ladder

STAY = 0.15
"""Added to the return of devices that a job holds already: keeping them costs no pause."""


class Climber(NamedTuple):
    """One job in the greedy allocation."""

    ladder: Ladder
    base: int
    """Level that it must have now, counted from 1; 0: none."""
    cost: float
    """Device-seconds that an iteration costs in its reservation: `level / rate(level)`."""
    held: int
    """Workers that it has now."""
    rigid: bool = False
    """It cannot afford a change beyond its base: it may stay at what it holds, and must ask before it climbs."""


def climb(climbers: list[Climber], free: int, may_climb: Callable[[int, int], bool]) -> tuple[list[int], list[float]]:
    """Levels for all, counted from 1 (0: none), and the last return that each was given.

    `may_climb(index, level)` is asked before a rigid job goes anywhere else than to what it holds; once refused it is
    not asked again.
    """
    at = [climber.base for climber in climbers]
    last = [0.0] * len(climbers)
    heap: list[tuple[float, int, int]] = []
    for index, climber in enumerate(climbers):
        step = _step(climber, index, climber.base)
        if step is not None:
            heap.append(step)
    heapify(heap)
    while heap and free > 0:
        value, index, level = heappop(heap)
        climber = climbers[index]
        levels = climber.ladder.levels
        now_at = at[index]
        more = levels[level - 1] - (levels[now_at - 1] if now_at else 0)
        if more > free:
            continue
        if climber.rigid and levels[level - 1] != climber.held and not may_climb(index, level):
            continue
        at[index] = level
        last[index] = -value
        free -= more
        step = _step(climber, index, level)
        if step is not None:
            heappush(heap, step)
    return at, last


def _step(climber: Climber, index: int, at: int) -> tuple[float, int, int] | None:
    """The heap entry for the next level up, best return first; ties go to the job that comes first."""
    levels, rates = climber.ladder.levels, climber.ladder.rates
    if at == len(levels):
        return None
    workers, rate = (levels[at - 1], rates[at - 1]) if at else (0, 0.0)
    up = at
    if climber.rigid and climber.held > workers:
        # What lies between its base and what it holds would be a change as well: there is no stopping on the way.
        reached = climber.ladder.reach(climber.held) - 1
        up = reached if levels[reached] == climber.held else up
    value = (rates[up] - rate) / (levels[up] - workers) * climber.cost - 1.0
    if levels[up] <= climber.held:
        value += STAY
    return -value, index, up + 1
