"""Greedy allocation by marginal return (ElasticFlow's Algorithm 2), with one sort and a closed form.

A job's reservation trains each iteration at `level / rate(level)` device-seconds. Devices given now train iterations
that the reservation then need not: going from `p` to `k` devices for a while `d` costs `(k - p) d` device-seconds and
saves `(rate(k) - rate(p)) d * level / rate(level)`. The marginal return, per device-second given, is

    (rate(k) - rate(p)) / (k - p) * level / rate(level) - 1

which does not depend on `d`, nor on what other jobs get. So the steps of a job are known before anything is given, and
giving the best step that is left, again and again, is going through all steps sorted by the least return on the way to
each: a step with a high return behind one with a low return comes right after that one.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId

STAY = 0.15
"""Added to the return of devices that a job holds already: keeping them costs no pause."""


class Step(NamedTuple):
    """One job going up to one level. In order of `Step`, the best step that is possible comes first."""

    order: float
    """Minus the least return on the way up to here."""
    rank: float
    """Equal returns go to the lower rank."""
    job: JobId
    level: int
    """Counted from 1."""
    more: int
    """Devices that this step takes."""
    value: float
    """Its own return."""
    asks: bool
    """Whether `may_climb` is asked first."""


class Climber(NamedTuple):
    """What the steps of a job depend on."""

    ladder: Ladder
    base: int
    """Level that it must have now, counted from 1; 0: none."""
    cost: float
    """Device-seconds that an iteration costs in its reservation: `level / rate(level)`."""
    held: int
    """Workers that it has now."""
    rigid: bool = False
    """It cannot afford a change beyond its base: it may stay at what it holds, and must ask before it climbs."""


def steps_of(job: JobId, rank: float, climber: Climber) -> tuple[Step, ...]:
    """All steps of a job above its base, each of which comes after the one before."""
    ladder, at, cost, held, rigid = climber
    levels, rates = ladder.levels, ladder.rates
    workers, rate = (levels[at - 1], rates[at - 1]) if at else (0, 0.0)
    if rigid and held > workers and levels[ladder.reach(held) - 1] == held:
        # What lies between its base and what it holds would be a change as well: there is no stopping on the way.
        at = ladder.reach(held) - 1
    found: list[Step] = []
    order = -float("inf")
    for level in range(at, len(levels)):
        higher = levels[level]
        value = (rates[level] - rate) / (higher - workers) * cost - 1.0
        if higher <= held:
            value += STAY
        if -value > order:
            order = -value
        found.append(Step(order, rank, job, level + 1, higher - workers, value, rigid and higher != held))
        workers, rate = higher, rates[level]
    return tuple(found)


def climb(steps: Iterable[Step], free: int, may_climb: Callable[[JobId, int], bool]) -> dict[JobId, Step]:
    """The last step that each job is given; a job that is refused one, or has no room for it, stops there."""
    taken: dict[JobId, Step] = {}
    stopped: set[JobId] = set()
    if free <= 0:
        return taken
    for step in sorted(steps):
        job = step.job
        if job in stopped:
            continue
        if step.more > free or (step.asks and not may_climb(job, step.level)):
            stopped.add(job)
            continue
        taken[job] = step
        free -= step.more
        if not free:
            break
    return taken
