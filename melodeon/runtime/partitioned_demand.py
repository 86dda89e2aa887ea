"""Partitions on demand, a worker's side: it asks for partitions, uses them up, and tells what committed steps used.

    take ... take | pending() -> gathered from all workers, with the step's exchange -> commit(everyone's) | take ...

What committed steps have used (`progress`) is part of the job's state and the same on every worker. What was drawn
since counts for nothing until `commit`: when a step is given up, `reassign` goes back to the progress. So nothing is
skipped or repeated, whoever is lost, and whoever hands out partitions (a `Grants`: in a job, the book that every worker
keeps) need not be up to date.

A worker with nothing in hand waits for partitions, unless another member of its view holds some that are not used up;
then it runs a sample that weighs nothing. So in every step somebody has samples: take the worker with the oldest
document among those who rely on others. The partition it relies on was handed out before that document was written, so
its holder, whose document is no older, knows of it.

Traded away: weights are relative to a full batch, so that every sample counts the same in an epoch and no number needs
to be exchanged before the backward pass. A step in which some have nothing is a smaller one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from melodeon.core.errors import MelodeonError
from melodeon.core.partitions import Block, Line, OpenPlan, Progress, block_at
from melodeon.runtime.feed import Batch
from melodeon.runtime.feed_source import Collate, Key, Source
from melodeon.runtime.partitioned_read import Shelf

if TYPE_CHECKING:
    from melodeon.runtime.partitioned import Partitioned


@dataclass(frozen=True, slots=True)
class Granted:
    """What has been handed out, as a whole document; newer ones have higher numbers."""

    number: int
    epoch: int = -1
    """The epoch that it is about."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Partitions in this worker's hands. Where to go on in them is known better from the job's state."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Partition -> worker, for all that are in somebody's hands."""


class Grants(Protocol):
    """The counter at which a worker gets partitions."""

    def want(self, num: int) -> None:
        """Say how many partitions that are not used up this worker would like to hold, from now on."""

    def grants(self, after: int = -1) -> Granted:
        """The newest document; waits for one with a number above `after`.

        Raises what the runtime raises where a step must be given up, so that a waiting worker can enter a new view.
        """

    def members(self) -> Collection[int]:
        """The workers of the view that this worker has entered."""

    def used(self, progress: Progress) -> None:
        """A step is committed, and this is used now; after an epoch's last step, nothing of the next one."""

    def began(self, progress: Progress) -> None:
        """An epoch begins without a commit: the first one, or one after an epoch that was left early."""


class DemandFeed:
    """Batches of one worker's virtual workers, out of the partitions in its hands."""

    def __init__(
        self,
        data: "Partitioned",
        *,
        plan: OpenPlan,
        grants: Grants,
        seed: int,
        shuffle: bool,
        collate_fn: Collate | None = None,
        keep_generators: bool = True,
    ) -> None:
        self.plan = plan
        self.stop: int | None = None
        """The cursor at which the job ends."""
        self._data, self._grants = data, grants
        self._seed, self._shuffle = seed, shuffle
        self._collate_fn, self._keep_generators = collate_fn, keep_generators
        self._shelf = Shelf(data.read_ahead(), seed=seed, shuffle=shuffle)
        self.progress: Progress
        """What committed steps have used of the epoch; the same on every worker."""
        self._granted = Granted(-1)
        self._drawn: dict[str, int] = {}  # by the step in progress: partition -> the sample after the last one drawn
        self._filler: list[Any] = []  # a sample to run where none is left
        self._begin(0)
        self._grants.began(self.progress)

    # -- the protocol of a source ------------------------------------------------------------------------------------

    def start(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Ask for what `ranks` need, from `cursor` on."""
        assert factor == 1, "hybrid scaling is refused with partitions on demand"
        epoch, _ = self.plan.at(cursor)
        if epoch != self.progress.epoch:  # an epoch was left early, or not begun
            self._begin(epoch)
            self._grants.began(self.progress)
        self._drawn.clear()
        over = self.stop is not None and cursor >= self.stop
        self._grants.want(0 if over else self.num_wanted(len(ranks)))

    def reassign(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Serve `ranks` from `cursor` on: what was drawn and not committed is drawn again, here or elsewhere."""
        self.start(ranks, cursor, factor)

    def take(self, cursor: int, rank: int) -> Batch:
        """A batch for `rank`: of a full size, shorter where too little is in hand, of weight 0 where nothing is."""
        epoch, step = self.plan.at(cursor)
        if epoch != self.progress.epoch:
            self._begin(epoch)
            self._grants.began(self.progress)
        self._await_partitions()
        samples: list[Any] = []
        while len(samples) < self.plan.batch_size and (name := next(self._in_hand(), None)) is not None:
            samples += self._draw(name, self.plan.batch_size - len(samples))
        self._look_ahead()
        if samples:
            self._filler = samples[-1:]
        data = self._collate(cursor, epoch, step, rank, samples or self._any_sample())
        return Batch(data, len(samples) / self.plan.batch_size, cursor, rank, len(samples))

    def close(self) -> None:
        """End the reading, and ask for nothing more."""
        self._shelf.close()

    # -- commit ------------------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, int]:
        """What this step would use on this worker: partition -> samples used of it then."""
        return dict(self._drawn)

    def commit(self, everyone: Sequence[Mapping[str, int]]) -> None:
        """The step is committed: what all workers had pending is used. With the last sample the next epoch begins."""
        used: dict[str, int] = {}
        for pending in everyone:
            twice = used.keys() & pending.keys()
            if twice:
                raise MelodeonError(f"partition {min(twice)!r} was used by two workers in one step: this is a defect")
            used |= pending
        self._drawn.clear()
        self.progress = self._line.add(self.progress, used)
        if self.num_left == 0:
            self._begin(self.progress.epoch + 1)
        self._grants.used(self.progress)

    def after(self, cursor: int) -> int:
        """The cursor of the next step: the next one of this epoch, or the first one of the next."""
        epoch, _ = self.plan.at(cursor)
        return self.plan.cursor(epoch + 1) if self.progress.epoch > epoch else cursor + 1

    @property
    def num_left(self) -> int:
        """Samples of the epoch that no committed step has used."""
        return self._line.num_samples - self._line.num_used(self.progress)

    def state_dict(self) -> dict[str, Any]:
        """What belongs to the job's state; the same on every worker."""
        state: dict[str, Any] = msgspec.to_builtins(self.progress)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another worker or of a checkpoint."""
        progress = msgspec.convert(dict(state), Progress)
        self._begin(progress.epoch)
        self.progress = progress

    # -- inside ------------------------------------------------------------------------------------------------------

    def _begin(self, epoch: int) -> None:
        self._line = Line(self._data.catalogue, seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        self.progress = self._line.begin()
        self._drawn.clear()

    def num_wanted(self, num_ranks: int) -> int:
        """Partitions that a worker would like to hold: the one in use, and behind it enough for two steps: the double
        buffer, and time for the answer.
        """
        two_steps = 2 * num_ranks * self.plan.batch_size
        return 1 + max(1, -(-two_steps * len(self._data.catalogue.partitions) // len(self._data)))

    def _await_partitions(self) -> None:
        self._granted = self._grants.grants()
        # Having drawn something in this step, it counts on nobody: the others of its virtual workers may go without.
        while next(self._in_hand(), None) is None and not self._drawn and not self._others_have():
            self._granted = self._grants.grants(after=self._granted.number)

    def _in_hand(self) -> Iterator[str]:
        """Partitions in this worker's hands that are not used up or drawn to the end, in the line's sequence."""
        if self._granted.epoch != self.progress.epoch:
            return
        for name in sorted(self._granted.parts, key=self._line.place):
            if self._at(name) < self._line.size(name):
                yield name

    def _others_have(self) -> bool:
        if self._granted.epoch != self.progress.epoch:
            return False
        members = self._grants.members()
        others = (name for name, worker in self._granted.holders.items() if worker in members)
        return any(name not in self._granted.parts and self._at(name) < self._line.size(name) for name in others)

    def _at(self, name: str) -> int:
        return self._drawn.get(name, self._line.used(self.progress, name))

    def _block(self, name: str, offset: int) -> Block:
        return block_at(self._line.partitions[self._line.place(name)], offset, self._data.block)

    def _draw(self, name: str, num: int) -> list[Any]:
        """At most `num` samples of a partition, from where it stands to the end of the block at most."""
        start = self._at(name)
        block = self._block(name, start)
        stop = min(start + num, block.stop)
        samples = self._shelf.take(self.progress.epoch, block, start - block.start, stop - block.start)
        self._drawn[name] = stop
        return samples

    def _look_ahead(self) -> None:
        """Keep the block in use and read the one after it, in this partition or the next."""
        blocks: list[Block] = []
        for name in self._in_hand():
            blocks.append(self._block(name, self._at(name)))
            if len(blocks) == 1 and blocks[0].stop < self._line.size(name):
                blocks.append(self._block(name, blocks[0].stop))
            if len(blocks) >= 2:
                break
        self._shelf.want(blocks)

    def _any_sample(self) -> list[Any]:
        if not self._filler:
            first = self._line.cut(0, 1)[0]
            self._filler = self._shelf.take(self.progress.epoch, self._block(first.partition, 0), 0, 1)
        return self._filler

    def _collate(self, cursor: int, epoch: int, step: int, rank: int, samples: list[Any]) -> Any:
        source = Source(samples, self._collate_fn, self._seed, self._keep_generators)  # type: ignore[arg-type]
        made = source[Key(cursor, epoch, step, rank, list(range(len(samples))))]
        assert made is not None
        return made.data
