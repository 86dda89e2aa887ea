"""The book of partitions on demand: which worker holds which, and how far committed steps have come.

Partitions are handed out from the front of the epoch's line. Who holds one keeps it until it is used up, or until the
worker is gone or has left; then it is handed out again, to go on where the last committed step ended. Pure: no IO, no
clock; the whole of it is the catalogue, which never changes, and a small `LedgerState`.

What counts as used is the workers' word, not the book's: all of them know it exactly, as part of the job's state. A
worker may have said more than the job kept (it committed a step that the others run again without it), so a word of a
newer (generation, step) replaces the older one whole, also where it says less. Hence a partition that is used up keeps
its holder until a later step of the same generation was committed: from then on nobody can go back behind it.

Traded away: an epoch's first partitions are handed out only when every member has ended the epoch before.
"""

from collections.abc import Iterator, Mapping

import msgspec

from melodeon.core.partitions import Catalogue, Line, Partition, Progress


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes; a few entries for each worker, however many partitions there are."""

    seed: int
    shuffle: bool
    progress: Progress = Progress()
    generation: int = -1
    """The view in which, and"""
    step: int = -1
    """the step after which `progress` was true."""
    holders: dict[str, int] = {}
    """Partition -> the worker that holds it."""


class Ledger:
    """Hands out partitions. Every method may be called again with the same values, to the same effect."""

    def __init__(self, catalogue: Catalogue, state: LedgerState) -> None:
        self.catalogue = catalogue
        self._seed, self._shuffle = state.seed, state.shuffle
        self._generation, self._step = state.generation, state.step
        self._progress = state.progress
        self._holders = dict(state.holders)
        self._line = self._make_line(state.progress.epoch)

    @property
    def state(self) -> LedgerState:
        """What to store, and to make a ledger from that goes on here."""
        return LedgerState(
            seed=self._seed,
            shuffle=self._shuffle,
            progress=self._progress,
            generation=self._generation,
            step=self._step,
            holders=dict(self._holders),
        )

    @property
    def epoch(self) -> int:
        """The epoch that partitions are handed out of; -1 before the first."""
        return self._progress.epoch

    @property
    def holders(self) -> dict[str, int]:
        """Partition -> worker, for all that are in somebody's hands."""
        return dict(self._holders)

    @property
    def num_left(self) -> int:
        """Samples of the epoch that no committed step has used."""
        return self._line.num_samples - self._line.num_used(self._progress) if self.epoch >= 0 else 0

    def held(self, worker: int) -> dict[str, int]:
        """The partitions in a worker's hands -> samples of each that committed steps have used."""
        mine = [name for name, holder in self._holders.items() if holder == worker]
        return {name: self._line.used(self._progress, name) for name in sorted(mine, key=self._line.place)}

    def want(self, worker: int, num: int) -> dict[str, int]:
        """A member would like to hold `num` partitions that are not used up; returns all that it holds now.

        Only a worker that has entered the newest view may ask: others would wait for what it cannot use yet.
        """
        self.serve({worker: num})
        return self.held(worker)

    def serve(self, wants: Mapping[int, int]) -> None:
        """Hand out what several members would like to hold: one at a time, to whoever has the fewest."""
        counts = dict.fromkeys(wants, 0)
        for name, holder in self._holders.items():
            if holder in counts and not self._line.is_used_up(self._progress, name):
                counts[holder] += 1
        free = self._free()
        while short := [worker for worker in sorted(wants) if counts[worker] < wants[worker]]:
            partition = next(free, None)
            if partition is None:
                return
            worker = min(short, key=lambda worker: counts[worker])
            self._holders[partition.name] = worker
            counts[worker] += 1

    def commit(self, progress: Progress, *, generation: int, step: int) -> bool:
        """A member of `generation` that has committed `step` says what is used; False if something newer is known."""
        if progress.epoch != self.epoch or (generation, step) <= (self._generation, self._step):
            return False
        if generation == self._generation:  # all have committed the step before: what it used up stays so
            for name in [name for name in self._holders if self._line.is_used_up(self._progress, name)]:
                del self._holders[name]
        self._progress, self._generation, self._step = progress, generation, step
        return True

    def lose(self, worker: int) -> None:
        """A worker is gone: the rest of what it held, from the last committed step on, is free again."""
        self._holders = {name: holder for name, holder in self._holders.items() if holder != worker}

    def leave(self, worker: int) -> None:
        """A worker has left by a planned view: the rest of what it held is free again.

        To be called when a worker has entered the view without it, never before: until then it uses what it holds.
        """
        self.lose(worker)

    def new_epoch(self, epoch: int) -> None:
        """Every member of the newest view is at this epoch, the next one or, after a restart, an earlier one."""
        if epoch == self.epoch:
            return
        self._line = self._make_line(epoch)
        self._progress = self._line.begin()
        self._holders.clear()

    def _make_line(self, epoch: int) -> Line:
        return Line(self.catalogue, seed=self._seed, epoch=epoch, shuffle=self._shuffle)

    def _free(self) -> Iterator[Partition]:
        if self.epoch < 0:
            return
        for place in range(self._progress.front, len(self._line.partitions)):
            partition = self._line.partitions[place]
            if partition.name not in self._holders and not self._line.is_used_up(self._progress, partition.name):
                yield partition
