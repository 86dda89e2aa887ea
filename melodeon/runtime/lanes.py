"""How one bucket crosses between workers: everyone's rows go in, the folded sum comes out on everyone.

    pack local rows -> each worker folds its own slice of all rows -> every worker gets every slice

Which worker folds which slice is an arrangement for speed alone; the fold fixes the bits. Three arrangements:
`SharedLane` (workers of one host read and write each other's rows in shared memory), `GlooLane` (sockets: every slice
straight to its owner, every sum straight back; same bytes as a ring in two latency steps), `AloneLane` (one worker).
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import WorkerLost
from melodeon.runtime.folds import Fold
from melodeon.runtime.group import Group

_ALIGN = 16
_SUM = 0
"""The tag of a sum on its way back; rows have their numbers, from 1."""


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
            self._fold.apply([row[low:high] for row in self.rows], low, self.rows[0][low:high])


class SharedLane:
    """Workers of one host: `all_rows[w]` are worker w's rows, mapped into every worker.

    A slice belongs to one worker, who alone touches it between the two barriers, in everybody's rows.
    """

    def __init__(self, group: Group, all_rows: Sequence[Sequence[torch.Tensor]], fold: Fold) -> None:
        self.rows = all_rows[group.rank]
        self._group = group
        self._flat = [row for rows in all_rows for row in rows]
        self._sum, *self._copies = [rows[0] for rows in all_rows]
        self._slice = slices(self.rows[0].numel(), group.size)[group.rank]
        self._fold = fold

    def reduce(self) -> None:
        """Fold this worker's slice and hand it to everybody."""
        self._group.barrier()
        for low, high in self._fold.pieces(*self._slice, blocked=True):
            total = self._sum[low:high]
            self._fold.apply([row[low:high] for row in self._flat], low, total)
            for row in self._copies:
                row[low:high].copy_(total)
        failpoint("step.folded")
        self._group.barrier()


class GlooLane:
    """Workers that share no memory. `counts[w]` is worker w's number of rows.

    Everything is under way at once, in place: no row is copied to be sent, and a sum lands where the row's slice was.
    The slice has left by then, since its owner needs it whole to add it up. A bucket crosses whole. Cut into pieces,
    to add one up while the next is on the wire, or exchanged by halves between pairs of workers, it took 2 to 10 %
    longer with 4 processes on 2 cores; with all_to_all and broadcasts instead, 5 to 8 %.
    """

    def __init__(self, group: Group, rows: Sequence[torch.Tensor], counts: Sequence[int], fold: Fold) -> None:
        self.rows = rows
        self._group = group
        self._fold = fold
        cuts = slices(rows[0].numel(), group.size)
        self._low, high = cuts[group.rank]
        self._own = rows[0][self._low : high]
        # By worker, then by row: this worker's slice of its rows, where it lands or is. Everybody begins with another.
        others = [(group.rank + distance) % group.size for distance in range(1, group.size)]
        slots = {w: [torch.empty_like(self._own) for _ in range(counts[w])] for w in others}
        slots[group.rank] = [row[self._low : high] for row in rows]
        self._slices = [row for worker in range(group.size) for row in slots[worker]]
        takers = [w for w in others if cuts[w][0] < cuts[w][1]]  # a small bucket has no slice for some
        givers = others if self._own.numel() else []
        self._leaving = [(row[slice(*cuts[w])], w, 1 + turn) for w in takers for turn, row in enumerate(rows)]
        self._landing = [(row, w, 1 + turn) for w in givers for turn, row in enumerate(slots[w])]
        self._sums_in = [(rows[0][slice(*cuts[w])], w, _SUM) for w in takers]
        self._sums_out = [(self._own, w, _SUM) for w in givers]

    def reduce(self) -> None:
        """Each row's slices to their owners, fold, the sums back to everybody."""
        self._group.call(self._reduce)

    def _reduce(self) -> None:
        try:
            self._cross()
        except WorkerLost:
            # Those who had all of the lost worker's rows go on to wait for everybody's sums, this one's among them.
            self._group.hang_up()
            raise

    def _cross(self) -> None:
        landing = self._group.take_all(self._landing)
        rest = self._group.take_all(self._sums_in) + self._group.give_all(self._leaving)
        self._group.wait_all(landing)
        for start, stop in self._fold.pieces(self._low, self._low + self._own.numel(), blocked=True):
            piece = slice(start - self._low, stop - self._low)
            self._fold.apply([row[piece] for row in self._slices], start, self._own[piece])
        failpoint("step.folded")
        self._group.wait_all(rest + self._group.give_all(self._sums_out))
