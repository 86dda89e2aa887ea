"""The two fixed orders of summation, applied to flat rows of gradients.

A fold is given the same slice of every row (all partial sums, or all virtual workers' gradients, in rank order) and
returns their sum in its order. It may overwrite the slices. Which worker applies it to which slice makes no
difference to the bits.
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

    def apply(self, rows: Sequence[torch.Tensor], start: int) -> torch.Tensor:
        """The sum of one piece that begins at element `start`."""


class TreeFold:
    """`order="tree"`: rows are the partial sums of all workers."""

    def __init__(self, spans: Sequence[tree.Span], virtual_workers: int) -> None:
        self._additions = tree.fold(spans, virtual_workers)

    def pieces(self, start: int, stop: int, *, blocked: bool) -> Iterator[tuple[int, int]]:
        """One order everywhere: only blocks."""
        return _blocks(start, stop, blocked)

    def apply(self, rows: Sequence[torch.Tensor], start: int) -> torch.Tensor:  # noqa: ARG002  # one order everywhere
        """Add pairs of neighbours up the tree, in place."""
        for into, other in self._additions:
            rows[into].add_(rows[other])
        return rows[0]


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

    def apply(self, rows: Sequence[torch.Tensor], start: int) -> torch.Tensor:
        """Add downwards around the ring into fresh memory: every row is still needed in the middle of the sum."""
        first, *rest = ring.fold_order(start // self._size, self._virtual_workers)
        if not rest:
            return rows[first]
        total = torch.add(rows[first], rows[rest[0]])
        for rank in rest[1:]:
            total.add_(rows[rank])
        return total


def _blocks(start: int, stop: int, blocked: bool) -> Iterator[tuple[int, int]]:
    step = _BLOCK if blocked else max(1, stop - start)
    for low in range(start, stop, step):
        yield low, min(low + step, stop)
