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
from operator import itemgetter

import msgspec

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId

STAY = 0.15
"""Added to the return of devices that a job holds already: keeping them costs no pause."""


Step = tuple[float, JobId, int, int, float, bool]
"""One job going up to one level: (order, job, level, more, value, asks).

`order` is minus the least return on the way up to here: the best possible step has the lowest. `level` counts from 1,
the step takes `more` devices, its own return is `value`, and `asks` tells whether `may_climb` is asked first. A plain
tuple: a hundred are sorted in every round.
"""


_ORDER = itemgetter(0)


class Climber(msgspec.Struct, frozen=True, gc=False):
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


def steps_of(job: JobId, climber: Climber) -> tuple[Step, ...]:
    """All steps of a job above its base, each of which comes after the one before."""
    ladder, at, cost, held, rigid = climber.ladder, climber.base, climber.cost, climber.held, climber.rigid
    levels, rates = ladder.levels, ladder.rates
    workers, rate = (levels[at - 1], rates[at - 1]) if at else (0, 0.0)
    if rigid and held > workers and levels[ladder.reach(held) - 1] == held:
        # What lies between its base and what it holds would be a change as well: there is no stopping on the way.
        at = ladder.reach(held) - 1
    found: list[Step] = []
    order = -float("inf")
    for level in range(at, len(levels)):
        higher, faster = levels[level], rates[level]
        more = higher - workers
        value = (faster - rate) / more * cost - 1.0
        if higher <= held:
            value += STAY
        if -value > order:
            order = -value
        found.append((order, job, level + 1, more, value, rigid and higher != held))
        workers, rate = higher, faster
    return tuple(found)


def climb(steps: Iterable[Step], free: int, may_climb: Callable[[JobId, int], bool]) -> dict[JobId, Step]:
    """The last step that each job is given; a job that is refused one, or has no room for it, stops there.

    Of equal returns, the one that comes first in `steps` goes first: so they are sorted by one number each.
    """
    taken: dict[JobId, Step] = {}
    stopped: set[JobId] = set()
    if free <= 0:
        return taken
    for step in sorted(steps, key=_ORDER):
        _, job, level, more, _, asks = step
        if job in stopped:
            continue
        if more > free or (asks and not may_climb(job, level)):
            stopped.add(job)
            continue
        taken[job] = step
        free -= more
        if not free:
            break
    return taken
