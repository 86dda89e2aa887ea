"""A state through shared memory: the holder writes chunks into a small ring, every reader copies them out as they come.

The ring is anonymous memory that the holder makes and hands over with its Unix socket, so it has no name and is never
left behind. It is small enough to stay in the processor's cache: the holder's copy in and the reader's copy out then
run side by side, each moving main memory only once, and one write serves every reader. Progress goes over the socket,
four bytes a chunk (its checksum, or zero) one way and one byte back, which also orders the memory accesses and tells at
once when the other one dies. A whole second copy of the state instead of the ring was slower: its pages must be made.
"""

import ctypes
import mmap
import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import WorkerLost
from melodeon.runtime.memory import raw_view, reserve
from melodeon.runtime.transfer_layout import Outline, Span, Targets, cut
from melodeon.runtime.transfer_link import Check, Link

CHUNK = 1 << 20
NUM_SLOTS = 4

PATIENCE_S = 0.0003

_TICK = struct.Struct("<I")


class Ring:
    """`num_slots` chunks of memory that several processes map."""

    def __init__(self, descriptor: int, chunk: int, num_slots: int) -> None:
        populate = getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(descriptor, chunk * num_slots, flags=mmap.MAP_SHARED | populate)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._pinned = False
        self.descriptor = descriptor
        self.chunk = chunk
        self.num_slots = num_slots

    @classmethod
    def make(cls, chunk: int = CHUNK, num_slots: int = NUM_SLOTS) -> "Ring | None":
        """A new one; None where the system has no such memory to give."""
        descriptor = reserve(chunk * num_slots)
        if descriptor is None:
            return None
        try:
            return cls(descriptor, chunk, num_slots)
        except OSError:
            os.close(descriptor)
            return None

    @classmethod
    def taken(cls, descriptor: int, chunk: int, num_slots: int, link: Link) -> "Ring":
        """The one that the worker at the other end of `link` handed over."""
        try:
            return cls(descriptor, chunk, num_slots)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise link.lost(f"its shared memory cannot be mapped: {error}") from error

    def slot(self, number: int) -> int:
        """The address of the slot for chunk `number`."""
        return self._address + number % self.num_slots * self.chunk

    def pin(self) -> None:
        """Let devices reach it directly, if they will; without, their copies are slower."""
        if torch.cuda.is_available():
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            self._pinned = int(runtime.cudaHostRegister(self._address, self.chunk * self.num_slots, 0)) == 0

    def close(self) -> None:
        """Let go of the memory."""
        if self._pinned:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._address)
        self._map.close()
        os.close(self.descriptor)


def write_ring(outline: Outline, ring: Ring, links: Sequence[Link], check: Check, *, checked: bool) -> list[WorkerLost]:
    """Send the tensors to all `links` at once; those that die meanwhile are returned, and don't hold up the others."""
    readers = _Readers(links)
    if not all(memory.direct for memory in outline.memories):
        ring.pin()
    number = 0
    for number, spans in enumerate(cut(outline.header.sizes, outline.memories, ring.chunk), 1):
        readers.wait(number - ring.num_slots, check)
        address = ring.slot(number)
        for span in spans:
            span.memory.give(span.start, span.size, address + span.at)
        failpoint("copy.given")
        readers.tell(_TICK.pack(_sum(spans, address) if checked else 0), check)
    readers.wait(number + 1, check)  # one more than chunks: it has everything
    return readers.lost


def read_ring(targets: Targets, ring: Ring, link: Link, check: Check, *, checked: bool) -> None:
    """Fill the targets from the ring."""
    if not all(memory.direct for memory in targets.memories):
        ring.pin()
    ticks = _ticks(link, check)
    for number, spans in enumerate(cut(targets.sizes, targets.memories, ring.chunk), 1):
        expected = next(ticks)
        address = ring.slot(number)
        for span in spans:
            span.memory.take(span.start, span.size, address + span.at)
        if checked and _sum(spans, address) != expected:
            raise WorkerLost(f"chunk {number} of the state of worker {link.peer} arrived damaged: take a new view")
        failpoint("copy.taken")
        link.send(b"\1", check)
    link.send(b"\1", check)


class Patience:
    """A moment of looking again before sleeping: being woken takes longer than the other one's next chunk.

    Whoever else wants the core gets it meanwhile.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE_S

    def is_over(self) -> bool:
        """Whether to sleep now."""
        os.sched_yield()
        return time.monotonic() > self._until


class _Readers:
    """Those who read one ring, and how far they are."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.lost: list[WorkerLost] = []
        self._done = dict.fromkeys(links, 0)

    def wait(self, number: int, check: Check) -> None:
        """Until everyone that lives has copied chunk `number` out."""
        check()
        patience = Patience()
        while behind := [link for link, done in self._done.items() if done < number]:
            sleep = patience.is_over()
            for link in behind:
                try:
                    # Asleep on one of them, while the others' words wait: all of them are needed.
                    self._done[link] += len(link.take_some(4096, wait=sleep))
                except WorkerLost as error:
                    self._drop(link, error)
                if sleep:
                    check()

    def tell(self, tick: bytes, check: Check) -> None:
        """Everyone: one more chunk is there."""
        for link in list(self._done):
            try:
                link.send(tick, check)
            except WorkerLost as error:
                self._drop(link, error)

    def _drop(self, link: Link, error: WorkerLost) -> None:
        self.lost.append(error)
        del self._done[link]


def _ticks(link: Link, check: Check) -> Iterator[int]:
    """The checksums of the chunks as they become ready."""
    pending = bytearray()
    while True:
        patience = Patience()
        while len(pending) < _TICK.size:
            sleep = patience.is_over()
            pending += link.take_some(4096, wait=sleep)
            if sleep:
                check()
        check()
        yield _TICK.unpack_from(pending)[0]
        del pending[: _TICK.size]


def _sum(spans: Sequence[Span], address: int) -> int:
    value = 0
    for span in spans:
        value = zlib.crc32(raw_view(address + span.at, span.size), value)
    return value


def send_ring(link: Link, ring: Ring, preamble: bytes) -> None:
    """Hand the ring over, with the first words."""
    try:
        socket.send_fds(link.socket, [preamble], [ring.descriptor])
    except OSError as error:
        raise link.lost(error.strerror) from error
