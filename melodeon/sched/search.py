"""A bounded local search for one size for each of many jobs, under one capacity, where the value is a sum over jobs.

Every choice has sizes in ascending order, the first being none. A move raises or lowers one job by a size, taking what
is missing from one other; it is kept if the sum grows. The random numbers come from the caller: same seed, same answer.
"""

from heapq import heapify, heappop, heappush
from random import Random
from typing import NamedTuple


class Choice(NamedTuple):
    """The sizes that one job may have, and what each is worth."""

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    held: int
    """The size that it has now, by number."""


def raised(choices: list[Choice], capacity: int, start: list[int]) -> list[int]:
    """Raise jobs by the best value for each device, from a start that is lowered first if it is too much."""
    picked = list(start)
    free = capacity - sum(choice.sizes[at] for choice, at in zip(choices, picked, strict=True))
    for index in reversed(range(len(picked))):
        while free < 0 and picked[index]:
            free += choices[index].sizes[picked[index]] - choices[index].sizes[picked[index] - 1]
            picked[index] -= 1
    heap = [step for index, at in enumerate(picked) if (step := _up(choices[index], index, at)) is not None]
    heapify(heap)
    while heap and free > 0:
        _, index, to = heappop(heap)
        sizes = choices[index].sizes
        more = sizes[to] - sizes[picked[index]]
        if more > free:
            continue
        free, picked[index] = free - more, to
        step = _up(choices[index], index, to)
        if step is not None:
            heappush(heap, step)
    return picked


def improve(
    choices: list[Choice], capacity: int, start: list[int], draw: Random, moves: int
) -> tuple[float, list[int]]:
    """Try so many moves; the sum of values and the sizes by number."""
    picked = list(start)
    free = capacity - sum(choice.sizes[at] for choice, at in zip(choices, picked, strict=True))
    count = len(choices)
    for _ in range(moves):
        index = int(draw.random() * count)
        choice, at = choices[index], picked[index]
        to = at + (1 if draw.random() < 0.75 else -1)
        if not 0 <= to < len(choice.sizes):
            continue
        gain = choice.values[to] - choice.values[at]
        missing = choice.sizes[to] - choice.sizes[at] - free
        other, lower = index, 0
        if missing > 0:
            other = int(draw.random() * count)
            lower = _lowered(choices[other], picked[other], missing) if other != index else -1
            if lower < 0:
                continue
            gain += choices[other].values[lower] - choices[other].values[picked[other]]
        if gain > 1e-12:
            free += choice.sizes[at] - choice.sizes[to]
            if other != index:
                free += choices[other].sizes[picked[other]] - choices[other].sizes[lower]
                picked[other] = lower
            picked[index] = to
    return sum(choice.values[at] for choice, at in zip(choices, picked, strict=True)), picked


def _up(choice: Choice, index: int, at: int) -> tuple[float, int, int] | None:
    """The step to the higher size that adds most for each device; None: none adds anything."""
    best: tuple[float, int, int] | None = None
    for to in range(at + 1, len(choice.sizes)):
        value = (choice.values[to] - choice.values[at]) / (choice.sizes[to] - choice.sizes[at])
        if value > 0 and (best is None or -value < best[0]):
            best = (-value, index, to)
    return best


def _lowered(choice: Choice, at: int, by: int) -> int:
    """The highest size that gives back at least `by` devices; -1: it has not so many."""
    to = at
    while to >= 0 and choice.sizes[at] - choice.sizes[to] < by:
        to -= 1
    return to
