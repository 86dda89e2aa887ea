"""One step spread over devices of unequal speed, in whole virtual workers.

A step waits for its slowest device, and a virtual worker cannot be cut in two: a device that is 2.45 times as fast as
another cannot be given 2.45 times as many. `loads` finds the split with the shortest step, exactly.
"""

from functools import lru_cache
from math import floor

Groups = tuple[tuple[int, float], ...]
"""(devices, virtual workers a second on one of them) for each type."""

ROUNDING = 1e-9


@lru_cache(maxsize=1 << 16)
def loads(virtual_workers: int, groups: Groups) -> tuple[int, ...]:
    """Virtual workers on each device of each group (at most), so that all fit and the slowest device is done soonest.

    No device can be done before `virtual_workers / sum(devices * speed)`: from there the loads are raised one by one,
    always the one that is done earliest with one more, until every virtual worker has a place.
    """
    total = sum(count * speed for count, speed in groups)
    if not total:
        return (0,) * len(groups)
    found = [floor(virtual_workers / total * speed + ROUNDING) if count else 0 for count, speed in groups]
    room = sum(load * count for load, (count, _) in zip(found, groups, strict=True))
    usable = [index for index, (count, speed) in enumerate(groups) if count and speed]
    while room < virtual_workers:
        index = min(usable, key=lambda i: ((found[i] + 1) / groups[i][1], -groups[i][1]))
        found[index] += 1
        room += groups[index][0]
    return tuple(found)


def step_s(groups: Groups, loaded: tuple[int, ...]) -> float:
    """Seconds until the slowest device has run its virtual workers."""
    return max(
        (load / speed for load, (count, speed) in zip(loaded, groups, strict=True) if count and load), default=0.0
    )
