"""How one bucket crosses between workers: everyone's rows go in, the folded sum comes out on everyone.

    pack local rows -> each worker folds its own slice of all rows -> every worker gets every slice

Which worker folds which slice is an arrangement for speed alone; the fold fixes the bits. Three arrangements:
`SharedLane` (workers of one host read and write each other's rows in shared memory), `GlooLane` (sockets: all_to_all,
fold, broadcasts in place; same bytes as a ring in two latency steps), `AloneLane` (one worker).
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.runtime.folds import Fold
from melodeon.runtime.group import Group

_ALIGN = 16


def slices(numel: int, size: int) -> list[tuple[int, int]]:
    """The part of a bucket that each of `size` workers folds."""
    step = -(-numel // (size * _ALIGN)) * _ALIGN
    return [(min(k * step, numel), min((k + 1) * step, numel)) for k in range(size)]


class Lane(Protocol):
    """One bucket's way between the workers."""

    rows: Sequence[torch.Tensor]
    """This worker's rows on the CPU (or on the device, alone), to be filled before `reduce`; row 0 holds the sum
    after it.
    """

    def reduce(self) -> None:
        """Exchange and fold. Blocks; every worker calls it for the same buckets in the same order."""


class AloneLane:
    """One worker: all rows are here."""

    def __init__(self, rows: Sequence[torch.Tensor], fold: Fold) -> None:
        self.rows = rows
        self._fold = fold

    def reduce(self) -> None:
        """Fold everything."""
        blocked = self.rows[0].device.type == "cpu"
        for low, high in self._fold.pieces(0, self.rows[0].numel(), blocked=blocked):
            total = self._fold.apply([row[low:high] for row in self.rows], low)
            _assign(self.rows[0][low:high], total)


class SharedLane:
    """Workers of one host: `all_rows[w]` are worker w's rows, mapped into every worker.

    A slice belongs to one worker, who alone touches it between the two barriers, in everybody's rows.
    """

    def __init__(self, group: Group, all_rows: Sequence[Sequence[torch.Tensor]], fold: Fold) -> None:
        self.rows = all_rows[group.rank]
        self._group = group
        self._flat = [row for rows in all_rows for row in rows]
        self._sums = [rows[0] for rows in all_rows]
        self._slice = slices(self.rows[0].numel(), group.size)[group.rank]
        self._fold = fold

    def reduce(self) -> None:
        """Fold this worker's slice and hand it to everybody."""
        self._group.barrier()
        for low, high in self._fold.pieces(*self._slice, blocked=True):
            total = self._fold.apply([row[low:high] for row in self._flat], low)
            for row in self._sums:
                _assign(row[low:high], total)
        failpoint("step.folded")
        self._group.barrier()


class GlooLane:
    """Workers that share no memory. `counts[w]` is worker w's number of rows.

    A bucket crosses whole. Sending it in blocks of 8 MiB, to add one up while the next is on the wire, was tried and
    was 15 to 25 % slower with 4 processes on 2 cores.
    """

    def __init__(self, group: Group, rows: Sequence[torch.Tensor], counts: Sequence[int], fold: Fold) -> None:
        self.rows = rows
        self._group = group
        self._counts = counts
        self._fold = fold
        self._slices = slices(rows[0].numel(), group.size)
        low, high = self._slices[group.rank]
        self._takes = [[high - low if count > turn else 0 for count in counts] for turn in range(max(counts))]
        # landing[t]: my slice of every worker's row t, one after the other
        self._landing = [rows[0].new_empty(sum(take)) for take in self._takes]

    def reduce(self) -> None:
        """Each row's slices to their owners, fold, the sums back to everybody."""
        landed = [self._send_row(turn) for turn in range(len(self._landing))]
        mine = [landed[turn][worker] for worker, count in enumerate(self._counts) for turn in range(count)]
        low, high = self._slices[self._group.rank]
        for start, stop in self._fold.pieces(low, high, blocked=True):
            total = self._fold.apply([row[start - low : stop - low] for row in mine], start)
            _assign(self.rows[0][start:stop], total)
        failpoint("step.folded")
        self._spread()

    def _send_row(self, turn: int) -> Sequence[torch.Tensor]:
        landing, take = self._landing[turn], self._takes[turn]
        give = [high - low for low, high in self._slices]
        source = self.rows[min(turn, len(self.rows) - 1)]
        if len(self.rows) <= turn:
            source, give = source[:0], [0] * self._group.size
        self._group.all_to_all(landing, source, take, give)
        return torch.split(landing, take)

    def _spread(self) -> None:
        own = [(self.rows[0][low:high], worker) for worker, (low, high) in enumerate(self._slices) if low < high]
        self._group.broadcast_all(own)


class AllReduceLane:
    """gloo's own all_reduce, where its order is the fold's: between two halves of the tree, or V workers in `ddp`."""

    def __init__(self, group: Group, row: torch.Tensor) -> None:
        self.rows: Sequence[torch.Tensor] = [row]
        self._group = group

    def reduce(self) -> None:
        """Sum in place."""
        self._group.all_reduce(self.rows[0])


def _assign(target: torch.Tensor, value: torch.Tensor) -> None:
    if target.data_ptr() != value.data_ptr():
        target.copy_(value)
