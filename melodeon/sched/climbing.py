"""Give devices one step at a time to whoever gains most by it, as Optimus, Elan and Amoeba do.

The papers add one worker at a time. Here a step goes to the next count that was measured to be faster, and its gain is
counted for each device of the step: between two measured counts the rate is interpolated, so each device of a step has
the same gain and the order is that of single workers. What it trades away: when less than a whole step is left, it
goes to a job with a shorter step or stays free.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId

Step = tuple[int, float, int, float]
"""(workers, rate) below and above: from the workers that a job has to those it would have."""


class Climber(NamedTuple):
    """One job that may get more."""

    job: JobId
    ladder: Ladder
    workers: int
    """What it has for certain."""
    rate: float
    """Iterations a second with those."""
    work: float
    """Iterations that remain."""


Gain = Callable[[Climber, Step], float]


def time_saved(climber: Climber, step: Step) -> float:
    """Optimus' marginal gain: seconds by which one more device brings the end nearer."""
    below, slow, above, fast = step
    return climber.work * (1 / slow - 1 / fast) / (above - below)


def relative_throughput(_: Climber, step: Step) -> float:
    """Amoeba's gain: growth in throughput over the present one, for each device."""
    below, slow, above, fast = step
    return (fast - slow) / slow / (above - below)


class Given(NamedTuple):
    """What a job got."""

    workers: int
    gain: float
    """That of its last step; 0.0 if it got none."""


def climb(climbers: Iterable[Climber], free: int, gain: Gain) -> dict[JobId, Given]:
    """Share out `free` devices; equal gains go to the job that comes first."""
    members = list(climbers)
    found = {climber.job: Given(climber.workers, 0.0) for climber in members}
    heap = [entry for place, climber in enumerate(members) if (entry := _entry(climber, place, 0, gain)) is not None]
    heapify(heap)
    while heap and free > 0:
        value, place, level = heappop(heap)
        climber = members[place]
        workers = climber.ladder.levels[level]
        more = workers - found[climber.job].workers
        # What does not fit now never will: nothing is given back.
        if more > free:
            continue
        free -= more
        found[climber.job] = Given(workers, -value)
        higher = _entry(climber, place, level + 1, gain)
        if higher is not None:
            heappush(heap, higher)
    return found


def _entry(climber: Climber, place: int, level: int, gain: Gain) -> tuple[float, int, int] | None:
    """The next step up at or above a level (counted from 0), for the heap; None: there is none with a gain."""
    levels, rates = climber.ladder.levels, climber.ladder.rates
    below, slow = (levels[level - 1], rates[level - 1]) if level else (climber.workers, climber.rate)
    while level < len(levels) and (levels[level] <= climber.workers or rates[level] <= slow):
        level += 1
    if level == len(levels):
        return None
    value = gain(climber, (below, slow, levels[level], rates[level]))
    return (-value, place, level) if value > 0 else None
