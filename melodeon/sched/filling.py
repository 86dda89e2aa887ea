"""Progressive filling: the minimum satisfactory share (ElasticFlow's Algorithm 1), in continuous time.

A job is given the lowest level `j` of its ladder at which `min(j, what is left)` devices, from its deadline backwards,
are enough for the iterations that remain. What it gets is a reservation: blocks of (start, stop, workers), as late as
possible, so that the present stays free for whoever gains most by it. Every change of level costs the pause that it
will cost when it happens. A policy asks to be woken when a reservation begins, so that it can be kept exactly.
"""

from bisect import bisect_left
from typing import NamedTuple

import msgspec

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.sched.profile import Profile

ReservedBlock = tuple[float, float, int]
"""(start_s, stop_s, workers)"""

FINE_GRID_S = 1.0
"""Where rounds may come at any time, reservations still start at whole seconds: fewer, longer segments."""
SAFETY = 1.0 + 1e-7
"""Iterations are counted in floating point: a plan is made for this much more than remains."""
INFINITE = float("inf")
_KEPT = 1.0 + 1e-9
"""A plan that was made with `SAFETY` is good as long as it is worth this much."""


_HOPELESS = 1.0 - 1e-6
"""Below this part of what is needed no rounding error makes up for the rest."""


class Grid(NamedTuple):
    """The moments at which reservations may begin: now, and later the multiples of a step."""

    now_s: float
    step_s: float

    def down(self, time_s: float) -> float:
        """The last grid moment not after `time_s`, but not before now."""
        return max(self.now_s, time_s // self.step_s * self.step_s)

    @classmethod
    def of(cls, now_s: float, slot_s: float) -> "Grid":
        """The grid of a view: with slots, promises begin together, so that fewer rounds are needed to keep them."""
        return cls(now_s, slot_s or FINE_GRID_S)


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What one job needs from the planner."""

    job: JobId
    ladder: Ladder
    pauses: tuple[float, ...]
    """Seconds lost when it changes to each level of the ladder."""
    work: float
    """Iterations that remain."""
    deadline_s: float
    """When they must be done; infinite for best effort."""
    held: int = 0
    """Workers that it has now."""
    resume_s: float = 0.0
    """A pause in progress ends then."""
    free_start: bool = False
    """It never ran and starts without a pause. Only a start at once is planned so: it may be running by a later one."""

    def entry_s(self, level: int, now_s: float) -> float:
        """Seconds without progress when it is at `level` (counted from 1) from now on."""
        if self.free_start:
            return 0.0
        if self.ladder.levels[level - 1] == self.held:
            return max(0.0, self.resume_s - now_s)
        return self.pauses[level - 1]


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """The devices that are set aside for a job."""

    blocks: tuple[ReservedBlock, ...] = ()
    level: int = 0
    """The minimum satisfactory share, as a level of the ladder counted from 1; 0: nothing is set aside."""
    slack: float = 0.0
    """Iterations that it could still lose and be in time."""

    def workers_at(self, time_s: float) -> int:
        """Workers set aside at a moment."""
        for start, stop, workers in self.blocks:
            if start <= time_s < stop:
                return workers
        return 0

    def next_above(self, time_s: float, workers: int) -> float | None:
        """When more than `workers` are first set aside, later than a moment."""
        for start, _, block_workers in self.blocks:
            if start > time_s and block_workers > workers:
                return start
        return None


def fill(profile: Profile, ask: Ask, grid: Grid, spare_pauses: int = 0) -> Reservation | None:
    """What `set_aside` would find; the profile itself is not changed."""
    return set_aside(profile.copy(), ask, grid, spare_pauses)


def set_aside(profile: Profile, ask: Ask, grid: Grid, spare_pauses: int = 0) -> Reservation | None:
    """The minimum satisfactory share in what `profile` leaves, written into it; None: too little is left.

    `spare_pauses` asks for room for that many pauses more than the reservation itself needs.
    """
    ladder, work, deadline_s, (now, step) = ask.ladder, ask.work, ask.deadline_s, grid
    rates, window = ladder.rates, deadline_s - now
    if window <= 0 or rates[-1] * window < work:
        return None
    levels, pauses, capacity = ladder.levels, ask.pauses, profile.capacity
    # No level below this one is fast enough even with nobody else there.
    for index in range(bisect_left(rates, work / window), len(levels)):
        workers, rate, pause = levels[index], rates[index], pauses[index]
        if workers > capacity:
            return None
        # One block up to the deadline is the common case: no walk over segments is needed.
        need_s = work * SAFETY / rate + spare_pauses * pause
        start = (deadline_s - need_s - pause) // step * step
        if start <= now:
            start, pause = now, ask.entry_s(index + 1, now)
        slack_s = deadline_s - start - pause - need_s
        if slack_s >= 0 and profile.promise(start, deadline_s, workers):
            return Reservation(((start, deadline_s, workers),), index + 1, (slack_s + spare_pauses * pause) * rate)
        found = _walk(profile, ask, grid, index + 1, spare_pauses)
        if found is not None:
            reserve(profile, found)
            return found
    return None


def reserve(profile: Profile, reservation: Reservation, sign: int = 1) -> None:
    """Write a reservation into a profile (or take it out with sign -1)."""
    for start, stop, workers in reservation.blocks:
        profile.add(start, stop, sign * workers)


def _walk(profile: Profile, ask: Ask, grid: Grid, level: int, spare_pauses: int) -> Reservation | None:
    """From the deadline backwards over the segments, taking in each what is left, up to `level`."""
    levels, rates, pauses, reach = ask.ladder.levels, ask.ladder.rates, ask.pauses, ask.ladder.floor
    capacity, now = profile.capacity, grid.now_s
    most = capacity - levels[level - 1]
    spare = spare_pauses * pauses[level - 1] * rates[level - 1]
    need = ask.work * SAFETY + spare
    last, high = _skip(profile, ask, level)
    stop = high
    blocks: list[ReservedBlock] = []
    current, rate, enough_s = 0, 0.0, -INFINITE
    if last < 0:
        return None
    for low, taken in zip(profile.times[last::-1], profile.used[last::-1], strict=True):
        found = level if taken <= most else reach[capacity - taken]
        if found != current:
            if high - low < 2 * (pauses[found - 1] if found else pauses[0]):
                # Too short to be worth a change: go on as after it if there is room, else leave it out.
                found = current if found > current else 0
            if found != current:
                if current:
                    blocks.append((high, stop, levels[current - 1]))
                    need -= rate * (stop - high - pauses[current - 1])
                    if rates[level - 1] * (high - now) < need * _HOPELESS:
                        return None
                current, stop, enough_s = found, high, -INFINITE
                if current:
                    rate = rates[current - 1]
                    enough_s = stop - need / rate - pauses[current - 1]
        if low <= enough_s:
            start = max(low, grid.down(enough_s))
            blocks.append((start, stop, levels[current - 1]))
            return Reservation(tuple(reversed(blocks)), level, spare + rate * (enough_s - start))
        high = low
    if not current:
        return None
    # The last block starts now: a job that is already at that level goes on without a pause.
    slack = rate * (stop - now - ask.entry_s(current, now)) - need
    if slack < 0:
        return None
    blocks.append((now, stop, levels[current - 1]))
    return Reservation(tuple(reversed(blocks)), level, slack + spare)


def _skip(profile: Profile, ask: Ask, level: int) -> tuple[int, float]:
    """The last segment before the deadline that is worth using at up to `level`, and where it ends; -1: none is.

    Behind many promises that is far back. What was found useless to a job stays so for all of its shape until something
    is taken back, so it is looked through once.
    """
    times, used, reach, pauses = profile.times, profile.used, ask.ladder.floor, ask.pauses
    capacity, high = profile.capacity, ask.deadline_s
    most = capacity - ask.ladder.levels[level - 1]
    key = (ask.ladder.levels, pauses, level)
    index = first = bisect_left(times, high) - 1
    low_s, high_s = profile.useless.get(key, (INFINITE, INFINITE))
    while index >= 0:
        if low_s < high <= high_s:
            high = low_s
            index = bisect_left(times, high) - 1
            continue
        taken = used[index]
        found = level if taken <= most else reach[capacity - taken]
        if found and high - times[index] >= 2 * pauses[found - 1]:
            break
        high = times[index]
        index -= 1
    if high < times[first]:
        # Up to where the first began: that one may end later for others.
        profile.useless[key] = (high, times[first])
    return index, high


def kept(reservation: Reservation, ask: Ask, grid: Grid) -> Reservation | None:
    """What is left of an earlier reservation, shortened at its beginning to what the job still needs.

    None: it is no longer enough (the job was stopped or slowed more often than planned).
    """
    now = grid.now_s
    blocks = [(max(start, now), stop, workers) for start, stop, workers in reservation.blocks if stop > now]
    if not blocks or _worth(blocks, ask, now) < ask.work * _KEPT:
        return None
    while True:
        start, stop, workers = blocks[0]
        surplus = _worth(blocks, ask, now) - ask.work * SAFETY
        later = grid.down(start + max(surplus, 0.0) / ask.ladder.rate(workers))
        shorter = [(later, stop, workers), *blocks[1:]] if later < stop else blocks[1:]
        if later <= start or not shorter or _worth(shorter, ask, now) < ask.work * SAFETY:
            break
        blocks = shorter
    return Reservation(tuple(blocks), reservation.level, max(0.0, _worth(blocks, ask, now) - ask.work * _KEPT))


def _worth(blocks: list[ReservedBlock], ask: Ask, now_s: float) -> float:
    """Iterations that a job can train in its blocks by its deadline, pauses taken off."""
    total, before, last_stop = 0.0, ask.held, now_s
    for start, stop, workers in blocks:
        level = ask.ladder.reach(workers)
        pause = 0.0
        if start > last_stop or workers != before:
            pause = ask.pauses[level - 1]
        elif start <= now_s:
            pause = max(0.0, ask.resume_s - now_s)
        if start <= now_s and ask.free_start:
            pause = 0.0
        total += ask.ladder.rates[level - 1] * max(0.0, stop - start - pause)
        before, last_stop = workers, stop
    return total
