"""Partitions dealt to virtual workers: which samples a batch has is a pure function of (cursor, virtual rank).

Each virtual worker goes through its own piece of the epoch's line, so a worker reads only what its virtual workers use,
and any split of them gives the same batches. For each one, the blocks of its next batch and the block after them are in
memory.

Traded away: a worker with k virtual workers holds about 2k blocks; and where a cut or a resumed run begins in the
middle of a partition that can only be streamed, what lies before is read for nothing.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from melodeon.core.partitions import Block, Line, Piece
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Batch
from melodeon.runtime.feed_source import Collate, Key, Source
from melodeon.runtime.partitioned_read import Shelf

if TYPE_CHECKING:
    from melodeon.runtime.partitioned import Partitioned


class VirtualFeed:
    """Batches of one worker's virtual workers; serves the protocol that `runtime.feed.Feed` serves."""

    def __init__(
        self,
        data: "Partitioned",
        *,
        plan: EpochPlan,
        seed: int,
        shuffle: bool,
        collate_fn: Collate | None = None,
        keep_generators: bool = True,
    ) -> None:
        self.plan = plan
        self.stop: int | None = None
        """The cursor at which the job ends: nothing from there on is read ahead."""
        self._data, self._seed, self._shuffle = data, seed, shuffle
        self._collate_fn, self._keep_generators = collate_fn, keep_generators
        self._shelf = Shelf(data.read_ahead(), seed=seed, shuffle=shuffle)
        self._ranks = range(0)
        self._heads: dict[int, int] = {}  # the cursor at which each virtual worker takes next
        self._windows: dict[int, tuple[Block, ...]] = {}  # what it needs for that, and last the block after it
        self._lines: dict[int, Line] = {}
        self._pieces: dict[tuple[int, int], Piece] = {}

    def start(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Read ahead for `ranks` from `cursor` on."""
        assert factor == 1, "a virtual worker's piece of the line is its own: the number of them cannot change"
        assert 0 <= ranks.start < ranks.stop <= self.plan.virtual_workers, f"{ranks} is not a range of virtual ranks"
        self._ranks = ranks
        self._forget_before(self.plan.at(cursor)[0])
        self._heads = dict.fromkeys(ranks, cursor)
        self._windows = {rank: self._window(cursor, rank) for rank in ranks}
        self._want()

    def reassign(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Serve `ranks` from `cursor` on; blocks in memory that are still needed stay."""
        self.start(ranks, cursor, factor)

    def take(self, cursor: int, rank: int) -> Batch:
        """The batch of `rank` at `cursor`; called in turn, ranks within cursors. A jump only changes what is read."""
        assert rank in self._ranks, f"virtual rank {rank} is not among {self._ranks}"
        if self._heads[rank] != cursor:
            self.start(self._ranks, cursor)
        epoch, step = self.plan.at(cursor)
        samples = self._samples(epoch, step, rank)
        made = Source(samples, self._collate_fn, self._seed, self._keep_generators)[  # type: ignore[arg-type]
            Key(cursor, epoch, step, rank, list(range(len(samples))))
        ]
        assert made is not None
        self._move_on(cursor + 1, rank)
        return Batch(made.data, self.plan.weight(step, rank), cursor, rank, self.plan.num_counted(step, rank))

    def close(self) -> None:
        """End the reading."""
        self._shelf.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _samples(self, epoch: int, step: int, rank: int) -> list[Any]:
        piece = self._piece(epoch, rank)
        numbers = self._numbers(step, rank)
        samples = []
        for block, first in self._blocks(piece, numbers):
            # Padding, numbered past the piece's end, is its last sample once more: that one is in memory.
            places = [min(number, len(piece) - 1) - first for number in numbers]
            here = [place for place in places if 0 <= place < block.num_samples]
            taken = self._shelf.take(epoch, block, here[0], here[-1] + 1)
            samples += [taken[place - here[0]] for place in here]
        return samples

    def _numbers(self, step: int, rank: int) -> range:
        """Which samples of its piece a virtual worker takes: position p of the plan is sample p // V of rank p % V."""
        positions = self.plan.positions(step, rank)
        first = positions.start // self.plan.virtual_workers
        return range(first, first + len(positions))

    def _blocks(self, piece: Piece, numbers: range) -> Iterator[tuple[Block, int]]:
        number, stop = min(numbers.start, len(piece) - 1), min(numbers.stop, len(piece))
        while True:
            block, first = piece.block_at(number)
            yield block, first
            number = first + block.num_samples
            if number >= stop:
                return

    def _window(self, cursor: int, rank: int) -> tuple[Block, ...]:
        if self.stop is not None and cursor >= self.stop:
            return ()
        epoch, step = self.plan.at(cursor)
        piece = self._piece(epoch, rank)
        found = list(self._blocks(piece, self._numbers(step, rank)))
        blocks = [block for block, _ in found]
        after = found[-1][1] + found[-1][0].num_samples
        if after < min(len(piece), self.plan.steps_per_epoch * self.plan.batch_size):
            return (*blocks, piece.block_at(after)[0])
        if self.stop is not None and self.plan.cursor(epoch + 1) >= self.stop:
            return (*blocks, blocks[-1])
        return (*blocks, self._piece(epoch + 1, rank).block_at(0)[0])

    def _move_on(self, cursor: int, rank: int) -> None:
        if rank == self._ranks[0] and self.plan.at(cursor)[1] == 0:
            self._forget_before(self.plan.at(cursor - 1)[0])
        self._heads[rank] = cursor
        window = self._window(cursor, rank)
        if window != self._windows[rank]:
            self._windows[rank] = window
            self._want()

    def _want(self) -> None:
        """Next batches before what follows them; those whose turn is nearer first."""
        in_turn = [self._windows[rank] for rank in sorted(self._ranks, key=lambda rank: (self._heads[rank], rank))]
        near: Sequence[Block] = [block for window in in_turn for block in window[:-1]]
        self._shelf.want([*near, *(window[-1] for window in in_turn if window)])

    def _piece(self, epoch: int, rank: int) -> Piece:
        if epoch not in self._lines:
            self._lines[epoch] = Line(self._data.catalogue, seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        if (epoch, rank) not in self._pieces:
            self._pieces[epoch, rank] = Piece(self._lines[epoch], self.plan.virtual_workers, rank, self._data.block)
        return self._pieces[epoch, rank]

    def _forget_before(self, epoch: int) -> None:
        self._lines = {number: line for number, line in self._lines.items() if number >= epoch}
        self._pieces = {key: piece for key, piece in self._pieces.items() if key[0] >= epoch}
