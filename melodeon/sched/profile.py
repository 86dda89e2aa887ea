"""How many devices are promised at every moment from now on: a step function that can be cut, raised and asked.

Two parallel lists, so that the hot questions (the peak of a range, raising a range) are slices, which Python runs at C
speed; a thousand promises cost microseconds each.
"""

from bisect import bisect_left, bisect_right


class Profile:
    """`used[k]` devices are promised from `times[k]` to `times[k + 1]`; the last value holds for ever."""

    __slots__ = ("capacity", "times", "used")

    def __init__(self, now_s: float, capacity: int) -> None:
        self.capacity = capacity
        self.times: list[float] = [now_s]
        self.used: list[int] = [0]

    def copy(self) -> "Profile":
        """One that can be changed without changing this one."""
        other = Profile.__new__(Profile)
        other.capacity, other.times, other.used = self.capacity, self.times[:], self.used[:]
        return other

    def _cut(self, time_s: float) -> int:
        """The index of the segment that starts at `time_s`, made if needed."""
        index = bisect_left(self.times, time_s)
        if index == len(self.times) or self.times[index] != time_s:
            self.times.insert(index, time_s)
            self.used.insert(index, self.used[index - 1])
        return index

    def add(self, start_s: float, stop_s: float, devices: int) -> None:
        """Promise (or, if negative, take back) devices from `start_s` to `stop_s`."""
        if start_s >= stop_s:
            return
        first = self._cut(start_s)
        last = self._cut(stop_s)
        self.used[first:last] = [used + devices for used in self.used[first:last]]

    def peak(self, start_s: float, stop_s: float) -> int:
        """The most devices promised at any moment from `start_s` to `stop_s`."""
        first = bisect_right(self.times, start_s) - 1
        last = bisect_left(self.times, stop_s)
        return max(self.used[first:last], default=0)

    def segment_before(self, time_s: float) -> int:
        """The index of the segment that holds the moment just before `time_s`."""
        return bisect_left(self.times, time_s) - 1
