"""Progressive filling: the minimum satisfactory share (ElasticFlow's Algorithm 1), in continuous time.

A job is given the lowest level `j` of its ladder at which `min(j, what is left)` devices, from its deadline backwards,
are enough for the iterations that remain. What it gets is a reservation: blocks of (start, stop, workers), as late as
possible, so that the present stays free for whoever gains most by it. Every change of level costs the pause that it
will cost when it happens. Boundaries lie on the grid of decision slots, so that a reservation can be kept exactly.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.sched.profile import Profile

ReservedBlock = tuple[float, float, int]
"""(start_s, stop_s, workers)"""

FINE_GRID_S = 1.0
"""Where decisions may fall at any time, reservations still start at whole seconds: fewer, longer segments."""
SAFETY = 1.0 + 1e-7
"""Iterations are counted in floating point: a plan is made for this much more than remains."""
_KEPT = 1.0 + 1e-9
"""A plan that was made with `SAFETY` is good as long as it is worth this much."""


class Grid(NamedTuple):
    """The moments at which reservations may begin."""

    now_s: float
    step_s: float
    aligned_end: bool
    """Whether a reservation's end must lie on the grid as well, as with decision slots."""

    def down(self, time_s: float) -> float:
        """The last grid moment not after `time_s`, but not before now."""
        return max(self.now_s, floor(time_s / self.step_s) * self.step_s)

    def end(self, time_s: float) -> float:
        """Where a reservation that is of use until `time_s` ends."""
        return ceil(time_s / self.step_s) * self.step_s if self.aligned_end else time_s

    @classmethod
    def of(cls, now_s: float, slot_s: float) -> "Grid":
        """The grid of a view."""
        return cls(now_s, slot_s or FINE_GRID_S, slot_s > 0)


class Ask(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Reservation:
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
    """The minimum satisfactory share in what `profile` leaves, or None; the profile itself is not changed.

    `spare_pauses` asks for room for that many pauses more than the reservation itself needs.
    """
    ladder, now = ask.ladder, grid.now_s
    window = ask.deadline_s - now
    if window <= 0 or ladder.rates[-1] * window < ask.work:
        return None
    # No level below this one is fast enough even with nobody else there.
    lowest = bisect_left(ladder.rates, ask.work / window) + 1
    for level in range(lowest, len(ladder.levels) + 1):
        if ladder.levels[level - 1] > profile.capacity:
            return None
        found = _single(profile, ask, grid, level, spare_pauses)
        if found is None:
            found = _walk(profile, ask, grid, level, spare_pauses)
        if found is not None:
            return found
    return None


def reserve(profile: Profile, reservation: Reservation, sign: int = 1) -> None:
    """Write a reservation into a profile (or take it out with sign -1)."""
    for start, stop, workers in reservation.blocks:
        profile.add(start, stop, sign * workers)


def _single(profile: Profile, ask: Ask, grid: Grid, level: int, spare_pauses: int) -> Reservation | None:
    """One block up to the deadline, the common case: no walk over segments is needed."""
    now, rate, pause = grid.now_s, ask.ladder.rates[level - 1], ask.pauses[level - 1]
    need_s = ask.work * SAFETY / rate + spare_pauses * pause
    start = grid.down(ask.deadline_s - need_s - pause)
    if start <= now:
        pause = ask.entry_s(level, now)
    slack_s = ask.deadline_s - start - pause - need_s
    if slack_s < 0:
        return None
    end, workers = grid.end(ask.deadline_s), ask.ladder.levels[level - 1]
    if profile.peak(start, end) + workers > profile.capacity:
        return None
    return Reservation(((start, end, workers),), level, (slack_s + spare_pauses * pause) * rate)


def _walk(profile: Profile, ask: Ask, grid: Grid, level: int, spare_pauses: int) -> Reservation | None:
    """From the deadline backwards over the segments, taking in each what is left, up to `level`."""
    levels, rates, pauses = ask.ladder.levels, ask.ladder.rates, ask.pauses
    reach, top, now = ask.ladder.floor, levels[level - 1], grid.now_s
    spare = spare_pauses * pauses[level - 1] * rates[level - 1]
    need = ask.work * SAFETY + spare
    capacity, times, used = profile.capacity, profile.times, profile.used
    high = stop = grid.end(ask.deadline_s)
    index = profile.segment_before(high)
    blocks: list[ReservedBlock] = []
    got, current = 0.0, 0
    while True:
        low = times[index] if times[index] > now else now
        found = reach[min(top, capacity - used[index])]
        if found != current and high - low < 2 * pauses[max(found, 1) - 1]:
            # Too short to be worth a change: go on as after it if there is room, else leave it out.
            found = current if found > current else 0
        if found != current:
            if current:
                blocks.append((high, stop, levels[current - 1]))
                got -= rates[current - 1] * pauses[current - 1]
            current, stop = found, high
        if current:
            rate = rates[current - 1]
            until = min(high, ask.deadline_s)
            missing = need - got + rate * pauses[current - 1]
            if rate * (until - low) >= missing:
                start = max(low, grid.down(until - missing / rate))
                blocks.append((start, stop, levels[current - 1]))
                slack = spare + rate * (until - missing / rate - start)
                return Reservation(tuple(reversed(blocks)), level, max(slack, 0.0))
            got += rate * (until - low)
        if low <= now:
            break
        high = low
        index -= 1
    if not current:
        return None
    # The last block starts now: a job that is already at that level goes on without a pause.
    slack = got - rates[current - 1] * ask.entry_s(current, now) - need
    if slack < 0:
        return None
    blocks.append((now, stop, levels[current - 1]))
    return Reservation(tuple(reversed(blocks)), level, slack + spare)


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
        total += ask.ladder.rates[level - 1] * max(0.0, min(stop, ask.deadline_s) - start - pause)
        before, last_stop = workers, stop
    return total
