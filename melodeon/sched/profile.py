"""How many devices are promised at every moment from now on: a step function that can be cut, raised and asked.

Two parallel lists, so that the hot questions (the peak of a range, raising a range) are slices, which Python runs at C
speed; a thousand promises cost microseconds each.
"""

from bisect import bisect_left, bisect_right
from itertools import compress, pairwise
from operator import ne


class Profile:
    """`used[k]` devices are promised from `times[k]` to `times[k + 1]`; the last value holds for ever."""

    __slots__ = ("capacity", "times", "used", "useless")

    def __init__(self, now_s: float, capacity: int) -> None:
        self.capacity = capacity
        self.times: list[float] = [now_s]
        self.used: list[int] = [0]
        self.useless: dict[object, tuple[float, float]] = {}
        """By the shape of a job: a stretch that it was found to have no use for; promises only make less of it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and (self.capacity, self.times, self.used) == (
            other.capacity,
            other.times,
            other.used,
        )

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> "Profile":
        """One that can be changed without changing this one."""
        other = Profile.__new__(Profile)
        other.capacity, other.times, other.used = self.capacity, self.times[:], self.used[:]
        other.useless = dict(self.useless)
        return other

    def since(self, now_s: float) -> "Profile":
        """A copy that begins now, without cuts that promises taken back have left."""
        first = bisect_right(self.times, now_s) - 1
        before, after = self.used[first:], self.used[first + 1 :]
        steps = list(map(ne, before, after))
        other = Profile.__new__(Profile)
        other.capacity, other.useless = self.capacity, {}
        other.times = [now_s, *compress(self.times[first + 1 :], steps)]
        other.used = [before[0], *compress(after, steps)]
        return other

    def add(self, start_s: float, stop_s: float, devices: int) -> None:
        """Promise (or, if negative, take back) devices from `start_s` to `stop_s`; what is past is left out."""
        times, used = self.times, self.used
        if start_s <= times[0]:
            if stop_s <= times[0]:
                return
            first = 0
        elif start_s >= stop_s:
            return
        else:
            first = bisect_left(times, start_s)
            if first == len(times) or times[first] != start_s:
                times.insert(first, start_s)
                used.insert(first, used[first - 1])
        last = bisect_left(times, stop_s, first)
        if last == len(times) or times[last] != stop_s:
            times.insert(last, stop_s)
            used.insert(last, used[last - 1])
        if devices < 0:
            self.useless.clear()
        full = self.capacity
        if last == first + 1:
            used[first] += devices
        else:
            raised = [count + devices for count in used[first:last]]
            if full in raised:
                # A cut inside a full stretch says nothing to anybody: without them, promises in a row are one segment.
                said = [True, *[not one == other == full for one, other in pairwise(raised)]]
                times[first:last] = compress(times[first:last], said)
                raised = list(compress(raised, said))
            used[first:last] = raised
            last = first + len(raised)
        if used[last] == used[last - 1] == full:
            del times[last], used[last]
        if first and used[first] == used[first - 1] == full:
            del times[first], used[first]

    def promise(self, start_s: float, stop_s: float, devices: int) -> bool:
        """Promise devices from `start_s`, which is not past, to `stop_s` if as many are left all along; if they were.

        What `peak` and `add` would do, without looking for the place twice: a planner asks little else.
        """
        times, used = self.times, self.used
        first = bisect_right(times, start_s) - 1
        last = bisect_left(times, stop_s, first) if stop_s <= times[-1] else len(times)
        taken = used[first:last]
        highest = max(taken) + devices
        if highest >= self.capacity:
            if highest == self.capacity:
                self.add(start_s, stop_s, devices)
            return highest == self.capacity
        if last == len(times):
            times.append(stop_s)
            used.append(used[-1])
        elif times[last] != stop_s:
            times.insert(last, stop_s)
            used.insert(last, used[last - 1])
        raised = [count + devices for count in taken]
        if times[first] != start_s:
            times.insert(first + 1, start_s)
            raised.insert(0, taken[0])
        used[first:last] = raised
        return True

    def peak(self, start_s: float, stop_s: float) -> int:
        """The most devices promised at any moment from `start_s` to `stop_s`."""
        first = bisect_right(self.times, start_s) - 1
        last = bisect_left(self.times, stop_s, first)
        return max(self.used[first:last], default=0)
