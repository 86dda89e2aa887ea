"""Progressive filling: the minimum satisfactory share (ElasticFlow's Algorithm 1), in continuous time.

A job is given the lowest level `j` of its ladder at which `min(j, what is left)` devices, from its deadline backwards,
are enough for the iterations that remain. What it gets is a reservation: blocks of (start, stop, workers), as late as
possible, so that the present stays free for whoever gains most by it. Every change of level costs the pause that it
will cost when it happens. A policy asks to be woken when a reservation begins, so that it can be kept exactly.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.sched.profile import Profile

ReservedBlock = tuple[float, float, int]
"""(start_s, stop_s, workers)"""

FINE_GRID_S = 1.0
"""Where rounds may come at any time, reservations still start at whole seconds: fewer, longer segments."""
SAFETY = 1.0 + 1e-7
"""Iterations are counted in floating point: a plan is made for this much more than remains."""
_KEPT = 1.0 + 1e-9
"""A plan that was made with `SAFETY` is good as long as it is worth this much."""


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


class Reservation(NamedTuple):
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
    (_, ladder, pauses, work, deadline_s, *_), (now, step) = ask, grid
    levels, rates = ladder.levels, ladder.rates
    times, used, capacity = profile.times, profile.used, profile.capacity
    window = deadline_s - now
    if window <= 0 or rates[-1] * window < work:
        return None
    # No level below this one is fast enough even with nobody else there.
    for level in range(bisect_left(rates, work / window) + 1, len(levels) + 1):
        workers, rate, pause = levels[level - 1], rates[level - 1], pauses[level - 1]
        if workers > capacity:
            return None
        # One block up to the deadline is the common case: no walk over segments is needed.
        need_s = work * SAFETY / rate + spare_pauses * pause
        start = (deadline_s - need_s - pause) // step * step
        if start <= now:
            start, pause = now, ask.entry_s(level, now)
        slack_s = deadline_s - start - pause - need_s
        if slack_s >= 0:
            first = bisect_right(times, start) - 1
            if max(used[first : bisect_left(times, deadline_s, first)]) + workers <= capacity:
                return Reservation(((start, deadline_s, workers),), level, (slack_s + spare_pauses * pause) * rate)
        found = _walk(profile, ask, grid, level, spare_pauses)
        if found is not None:
            return found
    return None


def reserve(profile: Profile, reservation: Reservation, sign: int = 1) -> None:
    """Write a reservation into a profile (or take it out with sign -1)."""
    for start, stop, workers in reservation.blocks:
        profile.add(start, stop, sign * workers)


def _walk(profile: Profile, ask: Ask, grid: Grid, level: int, spare_pauses: int) -> Reservation | None:
    """From the deadline backwards over the segments, taking in each what is left, up to `level`."""
    levels, rates, pauses = ask.ladder.levels, ask.ladder.rates, ask.pauses
    reach, top, now = ask.ladder.floor, levels[level - 1], grid.now_s
    spare = spare_pauses * pauses[level - 1] * rates[level - 1]
    need = ask.work * SAFETY + spare
    high = stop = ask.deadline_s
    first = bisect_left(profile.times, high)
    blocks: list[ReservedBlock] = []
    got, current, rate = 0.0, 0, 0.0
    for low, taken in zip(profile.times[first - 1 :: -1], profile.used[first - 1 :: -1], strict=True):
        left = profile.capacity - taken
        found = level if left >= top else reach[left]
        if found != current:
            if high - low < 2 * (pauses[found - 1] if found else pauses[0]):
                # Too short to be worth a change: go on as after it if there is room, else leave it out.
                found = current if found > current else 0
            if found != current:
                if current:
                    blocks.append((high, stop, levels[current - 1]))
                    got -= rate * pauses[current - 1]
                current, stop = found, high
                rate = rates[current - 1] if current else 0.0
        if current:
            gained = rate * (high - low)
            missing = need - got + rate * pauses[current - 1]
            if gained >= missing:
                start = max(low, grid.down(high - missing / rate))
                blocks.append((start, stop, levels[current - 1]))
                slack = spare + rate * (high - missing / rate - start)
                return Reservation(tuple(reversed(blocks)), level, max(slack, 0.0))
            got += gained
        high = low
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
        total += ask.ladder.rates[level - 1] * max(0.0, stop - start - pause)
        before, last_stop = workers, stop
    return total
