"""Buddy allocation on one line of slots: power-of-two blocks, each starting at a multiple of its size.

Taking the smallest free block that is large enough is best fit on the topology tree: the subtree whose idle devices are
closest to what the job needs. Free blocks are kept by size as sorted starts.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from melodeon.placement.topology import Run

Piece = tuple[int, int]
"""(start, size) of a block."""


def aligned(start: int, stop: int) -> Iterator[Piece]:
    """Cut a run of slots into the fewest aligned power-of-two blocks, as (start, size)."""
    while start < stop:
        size = start & -start
        if not size or size > stop - start:
            size = 1 << (stop - start).bit_length() - 1
        yield start, size
        start += size


def powers(count: int) -> tuple[int, ...]:
    """`count` as a sum of different powers of two, largest first."""
    if not count & (count - 1):
        return (count,) if count else ()
    return tuple(1 << bit for bit in range(count.bit_length() - 1, -1, -1) if count >> bit & 1)


class FreeBlocks:
    """The free blocks of one line. Mutable, and private to one placement."""

    def __init__(self, usable: Sequence[Run], taken: Iterable[Piece]) -> None:
        """`taken` lie inside `usable`; both ascending and apart."""
        self._starts: list[list[int]] = [[] for _ in range(usable[-1][1].bit_length())] if usable else []
        """`_starts[k]` holds the first slots of the free blocks of `2**k` slots, ascending."""
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
        for first, size in aligned(start, stop):
            self._starts[size.bit_length() - 1].append(first)

    def take(self, size: int) -> int | None:
        """The start of a free block of `size` slots, cut from the smallest block that has room; None: there is none."""
        for order in range(size.bit_length() - 1, len(self._starts)):
            starts = self._starts[order]
            if starts:
                start = starts.pop(0)
                self._split(start, order, start, size)
                return start
        return None

    def take_at(self, start: int, size: int) -> bool:
        """Take exactly the block at `start`, if it is free."""
        for order in range(size.bit_length() - 1, len(self._starts)):
            starts = self._starts[order]
            if starts:
                first = start >> order << order
                index = bisect_left(starts, first)
                if index < len(starts) and starts[index] == first:
                    del starts[index]
                    self._split(first, order, start, size)
                    return True
        return False

    def _split(self, first: int, order: int, start: int, size: int) -> None:
        # Halve until only the wanted block is left; the other halves stay free.
        while 1 << order > size:
            order -= 1
            middle = first + (1 << order)
            if start < middle:
                insort(self._starts[order], middle)
            else:
                insort(self._starts[order], first)
                first = middle
        self.count -= size

    def free(self, start: int, size: int) -> None:
        """Give a block back, joined with its buddy as far as that is free too."""
        self.count += size
        for starts in self._starts[size.bit_length() - 1 :]:
            buddy = start ^ size
            index = bisect_left(starts, buddy)
            if index == len(starts) or starts[index] != buddy:
                insort(starts, start)
                return
            del starts[index]
            start, size = min(start, buddy), size * 2
        raise AssertionError(f"slot {start} lies outside the line")

    def inside(self, start: int, size: int) -> int:
        """How many slots of a region are free."""
        total = 0
        for order, starts in enumerate(self._starts):
            if not starts:
                continue
            if 1 << order >= size:
                first = start >> order << order
                index = bisect_left(starts, first)
                if index < len(starts) and starts[index] == first:
                    return size
            else:
                total += (bisect_left(starts, start + size) - bisect_left(starts, start)) << order
        return total
