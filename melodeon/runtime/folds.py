"""The two fixed orders of summation, applied to flat rows of gradients.

A fold is given the same slice of every row (all partial sums, or all virtual workers' gradients, in rank order) and
adds them up in its order. It may overwrite the slices. Which worker applies it to which slice makes no difference to
the bits.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from melodeon.core import ring, tree

_BLOCK = 1 << 17
"""Elements per block on a CPU: small enough that a block of every row stays in the cache between additions."""


class Fold(Protocol):
    """An order of summation over rows."""

    def pieces(self, start: int, stop: int, *, blocked: bool) -> Iterator[tuple[int, int]]:
        """Cut `[start, stop)` where the order changes, and into blocks if asked."""

    def apply(self, rows: Sequence[torch.Tensor], start: int, into: torch.Tensor) -> None:
        """Put the sum of one piece, which begins at element `start`, into `into`; that may be one of the rows."""


class TreeFold:
    """`order="tree"`: rows are the partial sums of all workers, at least two."""

    def __init__(self, spans: Sequence[tree.Span], virtual_workers: int) -> None:
        *self._additions, self._last = tree.fold(spans, virtual_workers)

    def pieces(self, start: int, stop: int, *, blocked: bool) -> Iterator[tuple[int, int]]:
        """One order everywhere: only blocks."""
        return _blocks(start, stop, blocked)

    def apply(self, rows: Sequence[torch.Tensor], start: int, into: torch.Tensor) -> None:  # noqa: ARG002  # one order
        """Add pairs of neighbours up the tree, in place but for the last pair."""
        for left, right in self._additions:
            rows[left].add_(rows[right])
        left, right = self._last
        torch.add(rows[left], rows[right], out=into)


class RingFold:
    """`order="ddp"`: rows are the gradients of all virtual workers."""

    def __init__(self, numel: int, itemsize: int, virtual_workers: int) -> None:
        self._chunks = ring.chunks(numel, itemsize, virtual_workers)
        self._virtual_workers = virtual_workers
        self._size = max(1, ring.chunk_size(numel, itemsize, virtual_workers))

    def pieces(self, start: int, stop: int, *, blocked: bool) -> Iterator[tuple[int, int]]:
        """Cut at chunk borders, where the first rank of the sum changes."""
        for low, high in self._chunks:
            if max(low, start) < min(high, stop):
                yield from _blocks(max(low, start), min(high, stop), blocked)

    def apply(self, rows: Sequence[torch.Tensor], start: int, into: torch.Tensor) -> None:
        """Add downwards around the ring into fresh memory: every row is still needed in the middle of the sum."""
        first, *middle = ring.fold_order(start // self._size, self._virtual_workers)
        if not middle:
            into.copy_(rows[first])
            return
        total, last = rows[first], middle.pop()
        for rank in middle:
            total = torch.add(total, rows[rank]) if total is rows[first] else total.add_(rows[rank])
        torch.add(total, rows[last], out=into)


def _blocks(start: int, stop: int, blocked: bool) -> Iterator[tuple[int, int]]:
    step = _BLOCK if blocked else max(1, stop - start)
    for low in range(start, stop, step):
        yield low, min(low + step, stop)
