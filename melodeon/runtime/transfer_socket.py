"""A state over a socket: straight from the memory of the holder's tensors into that of the receiver's.

Nothing is copied on the way but by the kernel. What lies on a device crosses through a chunk of pinned host memory.
The receiver answers with a byte when it has everything, so that the holder knows before it trains on.
"""

import struct
import zlib
from collections.abc import Sequence

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import WorkerLost
from melodeon.runtime.memory import raw_view
from melodeon.runtime.transfer_layout import Memory, Outline, Span, Targets, cut
from melodeon.runtime.transfer_link import Check, Link

CHUNK = 16 << 20
_SUM = struct.Struct("<I")


def send_stream(outline: Outline, link: Link, check: Check, *, checked: bool) -> None:
    """Send the tensors and wait for the answer."""
    stage = _Stage(outline.memories)
    for spans in cut(outline.header.sizes, outline.memories, CHUNK):
        parts = [stage.view(span) for span in spans]
        for span in spans:
            if not span.memory.direct:
                span.memory.give(span.start, span.size, stage.address + span.at)
        if checked:
            parts.append(memoryview(_SUM.pack(_sum(parts))))
        link.send_parts(parts, check)
        failpoint("copy.given")
        check()
    link.take(1, check)


def receive_stream(targets: Targets, link: Link, check: Check, *, checked: bool) -> None:
    """Fill the targets, and answer."""
    stage = _Stage(targets.memories)
    for number, spans in enumerate(cut(targets.sizes, targets.memories, CHUNK), 1):
        parts = [stage.view(span) for span in spans]
        for part in parts:
            link.fill(part, check)
        if checked and _SUM.unpack(link.take(_SUM.size, check))[0] != _sum(parts):
            raise WorkerLost(f"chunk {number} of the state of worker {link.peer} arrived damaged: take a new view")
        for span in spans:
            if not span.memory.direct:
                span.memory.take(span.start, span.size, stage.address + span.at)
        failpoint("copy.taken")
        check()
    link.send(b"\1", check)


class _Stage:
    """Host memory for a chunk of what lies on a device."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        needed = not all(memory.direct for memory in memories)
        self._tensor = torch.empty(
            CHUNK if needed else 0, dtype=torch.uint8, pin_memory=needed and torch.cuda.is_available()
        )
        self.address = self._tensor.data_ptr()

    def view(self, span: Span) -> memoryview:
        """The bytes of a piece of a tensor: its own memory, or the place for it here."""
        if span.memory.direct:
            return span.memory.view(span.start, span.size)
        return raw_view(self.address + span.at, span.size)


def _sum(parts: Sequence[memoryview]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value
