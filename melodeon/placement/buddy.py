"""Buddy allocation on one line of slots: power-of-two blocks, each starting at a multiple of its size.

Taking the smallest free block that is large enough is best fit on the topology tree: the subtree whose idle devices are
closest to what the job needs. Free blocks are kept per size as sorted starts.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from melodeon.placement.topology import Run


def aligned(start: int, stop: int) -> Iterator[Run]:
    """Cut a run of slots into the fewest aligned power-of-two blocks, as (start, size)."""
    while start < stop:
        size = start & -start
        if not size or size > stop - start:
            size = 1 << (stop - start).bit_length() - 1
        yield start, size
        start += size


def powers(count: int) -> tuple[int, ...]:
    """`count` as a sum of different powers of two, largest first."""
    return tuple(1 << bit for bit in range(count.bit_length() - 1, -1, -1) if count >> bit & 1)


class FreeBlocks:
    """The free blocks of one line. Mutable, and private to one placement."""

    def __init__(self, usable: Iterable[Run], taken: Iterable[Run]) -> None:
        """`taken` are (start, size) blocks inside the usable runs, ascending and apart."""
        self._by_size: dict[int, list[int]] = {}
        self.count = 0
        blocks = iter(taken)
        block = next(blocks, None)
        for position, stop in usable:
            while block is not None and block[0] < stop:
                start, size = block
                if position < start:
                    self._add_run(position, start)
                position = start + size
                block = next(blocks, None)
            if position < stop:
                self._add_run(position, stop)

    def _add_run(self, start: int, stop: int) -> None:
        self.count += stop - start
        by_size = self._by_size
        for first, size in aligned(start, stop):
            if size in by_size:
                by_size[size].append(first)
            else:
                by_size[size] = [first]

    def take(self, size: int) -> int | None:
        """The start of a free block of `size` slots, cut from the smallest block that has room; None: there is none."""
        best = min((free for free, starts in self._by_size.items() if free >= size and starts), default=None)
        if best is None:
            return None
        start = self._by_size[best].pop(0)
        self._split(start, best, start, size)
        return start

    def take_at(self, start: int, size: int) -> bool:
        """Take exactly the block at `start`, if it is free."""
        whole = size
        while whole <= self._largest():
            first = start - start % whole
            starts = self._by_size.get(whole, [])
            index = bisect_left(starts, first)
            if index < len(starts) and starts[index] == first:
                starts.pop(index)
                self._split(first, whole, start, size)
                return True
            whole *= 2
        return False

    def _split(self, first: int, whole: int, start: int, size: int) -> None:
        # Halve until only the wanted block is left; the other halves stay free.
        while whole > size:
            whole >>= 1
            other = first + whole if start < first + whole else first
            first = first + whole if other == first else first
            insort(self._by_size.setdefault(whole, []), other)
        self.count -= size

    def free(self, start: int, size: int) -> None:
        """Give a block back, joined with its buddy as far as that is free too."""
        self.count += size
        while True:
            starts = self._by_size.setdefault(size, [])
            buddy = start ^ size
            index = bisect_left(starts, buddy)
            if index == len(starts) or starts[index] != buddy:
                insort(starts, start)
                return
            starts.pop(index)
            start, size = min(start, buddy), size * 2

    def _largest(self) -> int:
        return max((size for size, starts in self._by_size.items() if starts), default=0)

    def inside(self, start: int, size: int) -> int:
        """How many slots of a region are free."""
        total = 0
        for free, starts in self._by_size.items():
            if free >= size:
                first = start - start % free
                index = bisect_left(starts, first)
                if index < len(starts) and starts[index] == first:
                    return size
            else:
                total += free * (bisect_left(starts, start + size) - bisect_left(starts, start))
        return total
