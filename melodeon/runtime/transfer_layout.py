"""A state as it crosses between workers: a header that describes it, and one stream of bytes that holds its tensors.

    header   the codec's structure with every plain value, and a row for each tensor
    stream   each tensor's memory in the rows' order, each at a multiple of 64, cut into chunks

Both sides cut the stream alike, from the rows alone. A tensor that stands in several places crosses once and is shared
again on the other side. The receiver puts each one into its own tensor of the same path, shape, type, layout and kind
of device where it has one; the rest get memory on huge pages, since touching fresh small pages is slower than the copy.
"""

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec
import torch

from melodeon.core.errors import MelodeonError
from melodeon.runtime.codec import (
    DTYPES,
    JsonValue,
    _Encoder,
    check_tensor,
    dtype_name,
    snapshot,
    unflatten,
    unique_path,
)
from melodeon.runtime.memory import HUGE_FROM, own_pages, populate, raw_view

ALIGNMENT = 64


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the state."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """Of a dense layout other than row-major."""
    device: str
    """The kind of device: `cpu` or `cuda`."""
    same: int | None = None
    """The row whose memory this one is."""

    @property
    def num_bytes(self) -> int:
        """What it adds to the stream."""
        return 0 if self.same is not None else math.prod(self.shape) * DTYPES[self.dtype].itemsize


class Header(msgspec.Struct, frozen=True):
    """All of a state but its tensors' bytes."""

    structure: Any
    rows: tuple[Row, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each row that brings any."""
        return [size for row in self.rows if (size := row.num_bytes)]


class Memory:
    """The memory of one dense tensor, read and written in pieces. On a device it is reached through host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps the memory alive
        self._address = tensor.data_ptr()
        self.direct = tensor.device.type == "cpu"
        """Whether a view of it can be had."""

    def view(self, start: int, size: int) -> memoryview:
        """A piece of it, writable and uncopied; only while the memory itself is held, and only if it is `direct`."""
        return raw_view(self._address + start, size)

    def give(self, start: int, size: int, address: int) -> None:
        """Copy a piece of it to host memory."""
        if self.direct:
            ctypes.memmove(address, self._address + start, size)
        else:
            _host_tensor(address, size).copy_(self._flat()[start : start + size])

    def take(self, start: int, size: int, address: int) -> None:
        """Overwrite a piece of it from host memory."""
        if self.direct:
            ctypes.memmove(self._address + start, address, size)
        else:
            self._flat()[start : start + size].copy_(_host_tensor(address, size))

    def _flat(self) -> torch.Tensor:
        tensor = self._tensor
        return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class Span(NamedTuple):
    """A piece of a tensor within a chunk."""

    memory: Memory
    start: int
    size: int
    at: int
    """Where in the chunk."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A state ready to be sent."""

    header: Header
    memories: tuple[Memory, ...]
    """For each row that brings bytes."""


@dataclass(frozen=True, slots=True)
class Received:
    """A state that has arrived whole."""

    state: Any
    in_place: frozenset[str] = field(repr=False)
    """Paths of the tensors that are the receiver's own, filled: whoever owns them need not load them again."""
    num_bytes: int


def outline(state: object) -> Outline:
    """Describe a state without copying it; what the codec refuses is refused."""
    encoder = _Tensors(copy=False)
    structure = encoder.value(state, "", 0)
    rows: list[Row] = []
    memories: list[Memory] = []
    known: dict[tuple[object, ...], int] = {}
    for path, tensor in encoder.tensors.items():
        dense, strides = _dense(tensor)
        shape, same = tuple(tensor.shape), None
        if tensor.numel():
            # By the tensor given, not by the dense copy that may have been made of it.
            key = (tensor.data_ptr(), tensor.dtype, shape, tensor.stride(), tensor.device)
            first = known.setdefault(key, len(rows))
            if first < len(rows):
                same = first
            else:
                memories.append(Memory(dense))
        rows.append(Row(path, dtype_name(tensor.dtype), shape, strides, tensor.device.type, same))
    return Outline(Header(structure, tuple(rows)), tuple(memories))


def describe(state: object) -> bytes:
    """The outline of a state as bytes: what a newcomer may get before the state itself, see `furnish`."""
    return msgspec.msgpack.encode(outline(state).header)


def furnish(description: bytes, into: object = None) -> Any:
    """A state like the described one to be received into: `into`'s tensors, and new ones with their pages in place.

    A newcomer that does this before the state comes is spared the page faults, which cost more than the copy.
    """
    targets = Targets(parse_header(description), tensors_of(into))
    targets.touch()
    return targets.state()


def remember(state: object) -> Callable[[], None]:
    """Copy what a newcomer's own tensors hold; what is returned puts it back, where they were filled in part only."""
    held: list[tuple[Memory, torch.Tensor]] = []
    known: set[tuple[object, ...]] = set()
    for tensor in tensors_of(state).values():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key not in known and _dense(tensor)[0] is tensor:  # nothing is received into others
            known.add(key)
            held.append((Memory(tensor), snapshot(tensor)))

    def put_back() -> None:
        for memory, copy in held:
            memory.take(0, copy.numel() * copy.element_size(), copy.data_ptr())

    return put_back


def parse_header(data: bytes | bytearray | memoryview) -> Header:
    """Read what `outline` described."""
    header = msgspec.msgpack.decode(data, type=Header)
    for number, row in enumerate(header.rows):
        if row.dtype not in DTYPES or any(size < 0 for size in row.shape):
            raise ValueError(f"row {number} is not a tensor")
        if row.same is not None and not 0 <= row.same < number:
            raise ValueError(f"row {number} shares the memory of row {row.same}, which is not before it")
    return header


def tensors_of(state: object) -> dict[str, torch.Tensor]:
    """A receiver's own tensors by path, to be filled."""
    encoder = _Tensors(copy=False)
    try:
        encoder.value(state, "", 0)
    except MelodeonError:
        return {}  # a state that cannot be walked is of no use here, and its owner's to explain
    return encoder.tensors


def cut(sizes: Sequence[int], memories: Sequence[Memory], chunk: int) -> Iterator[list[Span]]:
    """The stream in chunks of `chunk` bytes, each a list of pieces."""
    spans: list[Span] = []
    at = 0
    for size, memory in zip(sizes, memories, strict=True):
        start = 0
        while start < size:
            if at >= chunk:
                yield spans
                spans, at = [], 0
            length = min(size - start, chunk - at)
            spans.append(Span(memory, start, length, at))
            start += length
            at += length
        at = -(-at // ALIGNMENT) * ALIGNMENT
    if spans:
        yield spans


class Targets:
    """Where the tensors of a state go on the receiver's side."""

    def __init__(self, header: Header, mine: Mapping[str, torch.Tensor]) -> None:
        """`mine` are the receiver's own tensors, see `tensors_of`."""
        self.header = header
        self.in_place: set[str] = set()
        self._fresh: mmap.mmap | None = None
        """One piece of memory for all tensors that the receiver does not have, where they are large."""
        self._scattered: list[torch.Tensor] = []
        """Those that have memory of their own."""
        used: set[int] = set()
        places: dict[int, torch.Tensor] = {}
        for number, row in enumerate(header.rows):
            own = mine.get(row.path)
            if own is None or not _fits(own, row):
                continue
            if row.same is not None:
                if row.same in places and places[row.same].data_ptr() == own.data_ptr():
                    self.in_place.add(row.path)
            elif own.data_ptr() not in used or not row.num_bytes:
                used.add(own.data_ptr())
                places[number] = own
                self.in_place.add(row.path)
        self._allocate(places)
        self.tensors = {
            row.path: places[number if row.same is None else row.same] for number, row in enumerate(header.rows)
        }
        self.sizes = header.sizes
        filled = [number for number, row in enumerate(header.rows) if row.num_bytes]
        self.memories = [Memory(places[number]) for number in filled]

    def _allocate(self, places: dict[int, torch.Tensor]) -> None:
        """Memory for the tensors that the receiver does not have."""
        missing = [(n, row) for n, row in enumerate(self.header.rows) if n not in places and row.same is None]
        on_host = sum(-(-row.num_bytes // ALIGNMENT) * ALIGNMENT for _, row in missing if row.device == "cpu")
        self._fresh = own_pages(on_host) if on_host >= HUGE_FROM else None
        at = 0
        for number, row in missing:
            if self._fresh is not None and row.device == "cpu" and row.num_bytes:
                flat = torch.frombuffer(self._fresh, dtype=torch.uint8, count=row.num_bytes, offset=at)
                at += -(-row.num_bytes // ALIGNMENT) * ALIGNMENT
                flat = flat.view(DTYPES[row.dtype])
            else:
                flat = torch.empty(math.prod(row.shape), dtype=DTYPES[row.dtype], device=row.device)
                self._scattered.append(flat)
            places[number] = flat.view(row.shape) if row.strides is None else flat.as_strided(row.shape, row.strides)

    def touch(self) -> None:
        """Bring in the pages of the new tensors now."""
        if self._fresh is not None:
            populate(ctypes.addressof(ctypes.c_char.from_buffer(self._fresh)), len(self._fresh))
        for flat in self._scattered:
            flat.zero_()

    def state(self) -> Any:
        """The state, once the tensors are filled."""
        return unflatten(cast(JsonValue, self.header.structure), self.tensors)

    def received(self) -> Received:
        """What the receiver gives back."""
        return Received(self.state(), frozenset(self.in_place), sum(self.sizes))


class _Tensors(_Encoder):
    """The codec's walk, with the tensors left where and as they are."""

    def _tensor(self, value: torch.Tensor, path: str) -> JsonValue:
        check_tensor(value, path)
        name = unique_path(path or "state", self.tensors)
        plain = value.detach() if value.requires_grad else value
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        self.tensors[name] = plain
        return {"tensor": name}


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """The tensor if its elements fill a piece of memory, else a copy that does; and its strides if not row-major."""
    if tensor.is_contiguous():
        return tensor, None
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    if tensor.permute(order).is_contiguous():
        return tensor, strides
    return tensor.contiguous(), None


def _fits(own: torch.Tensor, row: Row) -> bool:
    if own.dtype != DTYPES[row.dtype] or own.device.type != row.device or tuple(own.shape) != row.shape:
        return False
    if row.strides is None:
        return own.is_contiguous()
    # The stride of a dimension of one element says nothing.
    return all(
        size == 1 or mine == theirs for size, mine, theirs in zip(row.shape, own.stride(), row.strides, strict=True)
    )


def _host_tensor(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)
