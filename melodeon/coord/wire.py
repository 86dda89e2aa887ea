"""Frames: four bytes of length (big-endian), then one document as msgpack; at most 16 MiB.

The same bytes for two kinds of caller: asyncio streams (`read_frame`), and loops over sockets that may block on none
(`Frames`); both send what `pack` gives. A length or a document that breaks the rule raises `FrameError`; nothing after
it on that connection can be trusted. A stream that ends between two frames gives None, one that ends inside a frame
raises ConnectionError.
"""

import asyncio
import struct
from typing import Generic, TypeVar

import msgspec

from melodeon.core.errors import MelodeonError

T = TypeVar("T")

MAX_FRAME = 16 << 20
"""Bytes of one document."""
_HEADER = struct.Struct(">I")

_ENCODER = msgspec.msgpack.Encoder()


class FrameError(MelodeonError, ValueError):
    """What came over a connection is no frame of ours, or what was to be sent is too long for one."""


def pack(document: msgspec.Struct) -> bytes:
    """One document as a frame."""
    payload = _ENCODER.encode(document)
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a document of {len(payload)} bytes: a frame holds at most {MAX_FRAME}; send less at once")
    return _HEADER.pack(len(payload)) + payload


def unpack(payload: bytes | bytearray, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The document in a payload."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a frame of {len(payload)} bytes is no document that is understood here: {error}") from None


def _length(header: bytes | bytearray, limit: int) -> int:
    length: int = _HEADER.unpack_from(header)[0]
    if length > limit:
        raise FrameError(f"a frame of {length} bytes: at most {limit} are taken; is the other side speaking melodeon?")
    return length


async def read_payload(reader: asyncio.StreamReader, limit: int = MAX_FRAME) -> bytes | None:
    """The next frame's payload, or None where the connection ended before it.

    A reader whose read was cancelled may stand inside a frame: close that connection.
    """
    try:
        header = await reader.readexactly(_HEADER.size)
    except asyncio.IncompleteReadError as cut:
        if not cut.partial:
            return None
        raise ConnectionResetError("the connection ended inside the length of a frame") from None
    length = _length(header, limit)
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as cut:
        raise ConnectionResetError(
            f"the connection ended after {len(cut.partial)} of {length} bytes of a frame"
        ) from None


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next document, or None where the connection ended before it."""
    payload = await read_payload(reader)
    return None if payload is None else unpack(payload, decoder)


class Frames(Generic[T]):
    """Collects bytes as they arrive and gives back whole documents."""

    def __init__(self, kind: type[T] | msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = kind if isinstance(kind, msgspec.msgpack.Decoder) else msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Take some bytes; the documents that they complete."""
        self._rest += data
        found = []
        while (document := self._cut()) is not None:
            found.append(document)
        return found

    def _cut(self) -> T | None:
        """The next whole document, if there is one."""
        if len(self._rest) < _HEADER.size:
            return None
        end = _HEADER.size + _length(self._rest, MAX_FRAME)
        if len(self._rest) < end:
            return None
        payload = self._rest[_HEADER.size : end]
        del self._rest[:end]
        return unpack(payload, self._decoder)
