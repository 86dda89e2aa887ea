"""The arithmetic of a set kept in partitions: their sequence in an epoch, who gets which part, how far the job is.

The set is known by metadata alone: names and numbers of samples. An epoch lays the partitions end to end in a sequence
that is a pure function of (seed, epoch): the `Line`. With virtual workers, the line is cut into V pieces of equal
length (through partitions where it must be), so that nothing depends on the workers. On demand, whole partitions are
handed out from the front of the line, and a `Progress` says how far committed steps have come.

    line    | p3 ......... | p0 .... | p4 ................ | p1 . | p2 ....... |
    pieces  | virtual 0 ........ | virtual 1 ....... | virtual 2 ........... |
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import msgspec

from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan
from melodeon.core.streams import derive


class Partition(msgspec.Struct, frozen=True):
    """One partition as metadata."""

    name: str
    num_samples: int


class Catalogue(msgspec.Struct, frozen=True):
    """All partitions of a set, in the sequence in which they were listed."""

    partitions: tuple[Partition, ...]

    def __post_init__(self) -> None:
        if not self.partitions:
            raise UsageError("the set has no partitions and needs at least 1: check where it reads from")
        seen: set[str] = set()
        for name, count in ((partition.name, partition.num_samples) for partition in self.partitions):
            if not isinstance(name, str) or not name:
                raise UsageError(f"a partition is named {name!r}: a name is a text of at least 1 character")
            try:
                name.encode()
            except UnicodeEncodeError:  # such are the names of some files
                raise UsageError(f"a partition is named {name!r}, which is not UTF-8: rename it") from None
            if name in seen:
                raise UsageError(f"two partitions are named {name!r}: every partition needs a name of its own")
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise UsageError(f"partition {name!r} has {count!r} samples: the number must be a whole one, 0 or more")
            seen.add(name)

    @classmethod
    def of(cls, partitions: Mapping[str, int] | Iterable[tuple[str, int]]) -> "Catalogue":
        """A catalogue from pairs of name and number of samples, or from a mapping."""
        pairs = partitions.items() if isinstance(partitions, Mapping) else partitions
        return cls(tuple(Partition(name, count) for name, count in pairs))

    @property
    def num_samples(self) -> int:
        """Samples of all partitions together."""
        return sum(partition.num_samples for partition in self.partitions)

    def digest(self) -> str:
        """A short name for exactly these partitions in this sequence."""
        text = "\x1e".join(f"{partition.name}\x1f{partition.num_samples}" for partition in self.partitions)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Block(NamedTuple):
    """Samples `start` to `stop` of a partition: what is read in one go."""

    partition: str
    start: int
    stop: int

    @property
    def num_samples(self) -> int:
        """How many samples it has."""
        return self.stop - self.start


class Progress(msgspec.Struct, frozen=True):
    """What committed steps have used of one epoch; small, however many partitions there are."""

    epoch: int = -1
    """-1: no epoch has begun."""
    front: int = 0
    """So many partitions at the front of the line are used up."""
    offsets: dict[str, int] = {}
    """Samples used of each partition that was begun behind them."""


class Line:
    """One epoch's partitions end to end."""

    def __init__(self, catalogue: Catalogue, *, seed: int, epoch: int, shuffle: bool) -> None:
        listed = catalogue.partitions
        places = sequence(len(listed), seed, epoch) if shuffle else range(len(listed))
        self.epoch = epoch
        self.partitions = [listed[place] for place in places]
        self.ends = list(accumulate(partition.num_samples for partition in self.partitions))
        """Of each partition, the place on the line where it ends."""
        self._place = {partition.name: place for place, partition in enumerate(self.partitions)}

    @property
    def num_samples(self) -> int:
        """The line's length."""
        return self.ends[-1]

    def place(self, name: str) -> int:
        """Where a partition comes in the sequence."""
        return self._place[name]

    def size(self, name: str) -> int:
        """How many samples a partition has."""
        return self.partitions[self._place[name]].num_samples

    def cut(self, start: int, stop: int) -> list[Block]:
        """The parts of partitions that lie between two places of the line."""
        blocks = []
        place = bisect_right(self.ends, start)
        while start < stop:
            partition, end = self.partitions[place], min(self.ends[place], stop)
            first = self.ends[place] - partition.num_samples
            if end > start:
                blocks.append(Block(partition.name, start - first, end - first))
            start, place = end, place + 1
        return blocks

    # -- progress ----------------------------------------------------------------------------------------------------

    def begin(self) -> Progress:
        """Nothing is used yet."""
        return self.add(Progress(self.epoch), {})

    def used(self, progress: Progress, name: str) -> int:
        """Samples of a partition that committed steps have used."""
        place = self._place[name]
        return self.partitions[place].num_samples if place < progress.front else progress.offsets.get(name, 0)

    def is_used_up(self, progress: Progress, name: str) -> bool:
        """Whether nothing of a partition is left."""
        return self.used(progress, name) >= self.size(name)

    def num_used(self, progress: Progress) -> int:
        """Samples used in the epoch."""
        return (self.ends[progress.front - 1] if progress.front else 0) + sum(progress.offsets.values())

    def add(self, progress: Progress, offsets: Mapping[str, int]) -> Progress:
        """The progress when these partitions have been used so far."""
        behind = {
            **progress.offsets,
            **{name: at for name, at in offsets.items() if self._place[name] >= progress.front},
        }
        front = progress.front
        while front < len(self.partitions):
            partition = self.partitions[front]
            if behind.get(partition.name, 0) < partition.num_samples:
                break
            behind.pop(partition.name, None)
            front += 1
        return Progress(progress.epoch, front, behind)


class Piece:
    """One virtual worker's samples of an epoch, numbered from 0, in blocks of at most `block` samples."""

    def __init__(self, line: Line, virtual_workers: int, rank: int, block: int) -> None:
        each, more = divmod(line.num_samples, virtual_workers)
        start = rank * each + min(rank, more)
        # Fewer samples than virtual workers: one for which none is left runs the line's first, with weight 0.
        stop = start + each + (rank < more)
        self._parts = line.cut(start, stop) if stop > start else line.cut(0, 1)
        self._ends = list(accumulate(part.num_samples for part in self._parts))
        self._block = block

    def __len__(self) -> int:
        return self._ends[-1]

    def block_at(self, number: int) -> tuple[Block, int]:
        """The block that holds a sample, and the number of the block's first sample."""
        index = bisect_right(self._ends, number)
        part = self._parts[index]
        first = self._ends[index] - part.num_samples
        first += (number - first) // self._block * self._block
        start = part.stop - (self._ends[index] - first)
        return Block(part.partition, start, min(start + self._block, part.stop)), first


@dataclass(frozen=True, slots=True)
class OpenPlan(EpochPlan):
    """The plan of an epoch on demand: how many steps it takes shows only at its end.

    A cursor holds the epoch above its lower 32 bits, the step in the epoch in them. `steps_per_epoch` is the least.
    """

    def at(self, cursor: int) -> tuple[int, int]:
        """`(epoch, step in the epoch)` of a cursor."""
        return divmod(cursor, 1 << 32)

    def cursor(self, epoch: int, step: int = 0) -> int:
        """The one integer that stands for a step of an epoch."""
        return (epoch << 32) + step


def sequence(num_partitions: int, seed: int, epoch: int) -> list[int]:
    """The sequence of partitions in an epoch: a permutation, the same wherever and by whomever it is made."""
    return sorted(range(num_partitions), key=lambda index: derive(seed, "partition", epoch, index))


def block_at(partition: Partition, offset: int, block: int) -> Block:
    """The block of a whole partition that holds a sample."""
    start = offset // block * block
    return Block(partition.name, start, min(start + block, partition.num_samples))
