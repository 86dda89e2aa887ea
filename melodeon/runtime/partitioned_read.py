"""Partitions read ahead by one thread, a block at a time, into double buffers.

The owner says which blocks it wants in memory, the most urgent first; the thread reads those that are missing and drops
what is wanted no more. An open partition is kept while blocks of it are wanted, so a stream is read on and not from its
beginning. What goes wrong in the thread is raised where the block is taken.

Traded away: one thread, so that reading never takes more than one core from training.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch

from melodeon.core.errors import NotFound, UsageError
from melodeon.core.partitions import Block
from melodeon.core.streams import derive


@runtime_checkable
class Indexed(Protocol):
    """An open partition whose samples can be asked for by number."""

    def __len__(self) -> int:
        """How many samples it has."""

    def __getitem__(self, index: int, /) -> Any:
        """One of them."""


Open = Callable[[str], Indexed | Iterable[Any]]
"""Opens a partition by its name: gives its samples by number, or one after the other."""


class Reader:
    """Reads blocks and keeps partitions open between them. Used by one thread."""

    def __init__(self, open_partition: Open, sizes: Mapping[str, int]) -> None:
        self._open_partition, self._sizes = open_partition, sizes
        self._indexed: dict[str, Indexed] = {}
        self._streams: dict[tuple[str, int], Iterator[Any]] = {}
        """Streams by (partition, the sample that comes next)."""

    def read(self, block: Block) -> list[Any]:
        """The samples of a block."""
        try:
            return self._read(block)
        except OSError as error:
            raise NotFound(
                f"partition {block.partition!r} cannot be read ({error}): every partition that is listed must be there "
                "for every worker"
            ) from error

    def keep(self, partitions: set[str]) -> None:
        """Let go of all others."""
        self._indexed = {name: held for name, held in self._indexed.items() if name in partitions}
        self._streams = {key: stream for key, stream in self._streams.items() if key[0] in partitions}

    def _read(self, block: Block) -> list[Any]:
        stream = self._streams.pop((block.partition, block.start), None)
        if stream is None and block.partition not in self._indexed:
            opened = self._open(block.partition)
            if isinstance(opened, Indexed):
                self._indexed[block.partition] = opened
            else:
                stream = iter(opened)
                self._check(block.partition, sum(1 for _ in islice(stream, block.start)), block.start)
        if stream is not None:
            return self._read_on(stream, block)
        indexed = self._indexed[block.partition]
        many = getattr(indexed, "__getitems__", None)
        numbers = range(block.start, block.stop)
        return list(many(numbers)) if many else [indexed[number] for number in numbers]

    def _read_on(self, stream: Iterator[Any], block: Block) -> list[Any]:
        samples = list(islice(stream, block.num_samples))
        self._check(block.partition, block.start + len(samples), block.stop)
        if block.stop < self._sizes[block.partition]:
            self._streams[block.partition, block.stop] = stream
        else:
            self._check(block.partition, block.stop + sum(1 for _ in islice(stream, 1)), block.stop, "or more")
        return samples

    def _open(self, name: str) -> Indexed | Iterable[Any]:
        opened = self._open_partition(name)
        if not isinstance(opened, Indexed | Iterable):
            raise UsageError(
                f"opening partition {name!r} gave a {type(opened).__name__}: `open` must return its samples, as an "
                "iterable or with __len__ and __getitem__"
            )
        if isinstance(opened, Indexed):
            self._check(name, len(opened), self._sizes[name])
        return opened

    def _check(self, name: str, found: int, needed: int, more: str = "") -> None:
        if found != needed:
            raise UsageError(
                f"partition {name!r} has {found} {f'{more} ' if more else ''}samples and is listed with "
                f"{self._sizes[name]}: list every partition with the number of samples that it gives"
            )


class ReadAhead:
    """Blocks in memory, read by a thread of its own."""

    def __init__(self, open_partition: Open, sizes: Mapping[str, int]) -> None:
        self._reader = Reader(open_partition, sizes)
        self._changed = threading.Condition()
        self._wanted: list[Block] = []
        self._ready: dict[Block, list[Any] | BaseException] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def want(self, blocks: Iterable[Block]) -> None:
        """Have these in memory, the first ones first, and no others."""
        with self._changed:
            self._wanted = list(dict.fromkeys(blocks))
            self._ready = {block: self._ready[block] for block in self._wanted if block in self._ready}
            self._wake()

    def get(self, block: Block) -> list[Any]:
        """The samples of a block, when they are there."""
        with self._changed:
            if block not in self._ready:
                self._wanted = list(dict.fromkeys([block, *self._wanted]))
                self._wake()
            self._changed.wait_for(lambda: block in self._ready or self._closed)
            assert not self._closed, "take from a feed that is not closed"
            found = self._ready[block]
            if isinstance(found, BaseException):
                del self._ready[block]  # a caller who goes on asks again
                raise found
            return found

    def close(self) -> None:
        """End the thread; one that hangs in reading ends with the process."""
        with self._changed:
            self._closed = True
            self._wanted, self._ready = [], {}
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def _wake(self) -> None:
        if self._thread is None and not self._closed and self._wanted:
            self._thread = threading.Thread(target=self._run, name="melodeon-read-ahead", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while (block := self._next()) is not None:
            found: list[Any] | BaseException
            try:
                found = self._reader.read(block)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where the block is taken
                found = error
            with self._changed:
                if block in self._wanted:
                    self._ready[block] = found
                    self._changed.notify_all()

    def _next(self) -> Block | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._missing() is not None)
            self._reader.keep({block.partition for block in self._wanted})
            return None if self._closed else self._missing()

    def _missing(self) -> Block | None:
        return next((block for block in self._wanted if block not in self._ready), None)


class Shelf:
    """Blocks read ahead, and the sequence in which an epoch takes the samples out of each."""

    def __init__(self, reader: ReadAhead, *, seed: int, shuffle: bool) -> None:
        self._reader, self._seed, self._shuffle = reader, seed, shuffle
        self._sequences: dict[tuple[int, Block], Sequence[int]] = {}

    def want(self, blocks: Sequence[Block]) -> None:
        """Have these in memory, the first ones first, and no others."""
        self._reader.want(blocks)
        kept = set(blocks)
        self._sequences = {key: value for key, value in self._sequences.items() if key[1] in kept}

    def take(self, epoch: int, block: Block, start: int, stop: int) -> list[Any]:
        """Samples number `start` to `stop` of a block, in the epoch's sequence."""
        samples, numbers = self._reader.get(block), self._sequence(epoch, block)
        return [samples[number] for number in numbers[start:stop]]

    def close(self) -> None:
        """Let go of everything."""
        self._reader.close()

    def _sequence(self, epoch: int, block: Block) -> Sequence[int]:
        if not self._shuffle:
            return range(block.num_samples)
        if (epoch, block) not in self._sequences:
            stream = derive(self._seed, "block", epoch, block.partition, block.start)
            generator = torch.Generator().manual_seed(stream)
            self._sequences[epoch, block] = torch.randperm(block.num_samples, generator=generator).tolist()
        return self._sequences[epoch, block]
