"""Elan's foresight: seconds to everybody's end, added up, if a newcomer starts now or when its least becomes free.

The allocation rule is played forward from end to end, a dozen times for each of the two cases and for every job that
asks. So it has its own form of `climbing.climb` with `time_saved`: by place instead of by name, on steps that are
worked out once for each job. Both give the same devices to the same jobs, to the last bit of the gains.
"""

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from melodeon.core.curve import Ladder

FORESIGHT = 12
"""So many ends are played forward; shares stay as they are after those."""
WORK = 2000
"""Fewer ends where that would be more than so many jobs to look at: a round must stay short on large clusters."""


class Runner(NamedTuple):
    """One job: what it climbs, and the iterations that remain."""

    ladder: Ladder
    steps: tuple[tuple[float, int], ...]
    """From each level to the next: seconds that an iteration is shorter, and devices more."""
    work: float


def runner(ladder: Ladder, work: float) -> Runner:
    """A job that has the lowest level of its ladder for certain."""
    levels, rates = ladder.levels, ladder.rates
    steps = [(1 / rates[at] - 1 / rates[at + 1], levels[at + 1] - levels[at]) for at in range(len(levels) - 1)]
    return Runner(ladder, tuple(steps), work)


def seconds_to_ends(members: list[Runner], newcomer: Runner, capacity: int, *, waits: bool) -> float:
    """Seconds to everybody's end, added up, if the newcomer starts now or else when its least becomes free."""
    running, work = members[:], [member.work for member in members]
    if not waits:
        running.append(newcomer)
        work.append(newcomer.work)
    total = 0.0
    for _ in range(max(1, min(FORESIGHT, WORK // (len(running) + 1)))):
        reached = reach(running, work, capacity)
        rates = [one.ladder.rates[level] for one, level in zip(running, reached, strict=True)]
        left_s = [left / rate for left, rate in zip(work, rates, strict=True)]
        passed_s = min(left_s, default=0.0)
        total += passed_s * (len(running) + waits)
        stay = [place for place, seconds in enumerate(left_s) if seconds > passed_s]
        held = sum(running[place].ladder.levels[reached[place]] for place in stay)
        work = [work[place] - rates[place] * passed_s for place in stay]
        running = [running[place] for place in stay]
        if waits and capacity - held >= newcomer.ladder.levels[0]:
            running.append(newcomer)
            work.append(newcomer.work)
            waits = False
    if waits:
        running.append(newcomer)
        work.append(newcomer.work)
    reached = reach(running, work, capacity)
    return total + sum(left / one.ladder.rates[level] for one, level, left in zip(running, reached, work, strict=True))


def reach(running: list[Runner], work: list[float], capacity: int) -> list[int]:
    """The level of each job, counted from 0, when all devices are shared out by time saved.

    Equal gains go to the job that comes first.
    """
    free = capacity - sum(one.ladder.levels[0] for one in running)
    reached = [0] * len(running)
    heap: list[tuple[float, int]] = []
    for place, one in enumerate(running):
        if one.steps:
            saved_s, more = one.steps[0]
            value = work[place] * saved_s / more
            if value > 0:
                heap.append((-value, place))
    heapify(heap)
    while heap and free > 0:
        place = heap[0][1]
        steps, level = running[place].steps, reached[place]
        more = steps[level][1]
        # What does not fit now never will: nothing is given back.
        if more > free:
            heappop(heap)
            continue
        free -= more
        reached[place] = level = level + 1
        value = 0.0
        if level < len(steps):
            saved_s, more = steps[level]
            value = work[place] * saved_s / more
        if value > 0:
            heapreplace(heap, (-value, place))
        else:
            heappop(heap)
    return reached
