"""Frames: four bytes of length (big-endian), then one document as msgpack; at most 16 MiB.

The same bytes for three kinds of caller: asyncio streams (`read_frame`, `write_frame`), a thread that may block
(`FrameSocket`), and loops over many sockets that may block on none (`Frames`, `pack`). A length or a document that
breaks the rule raises `FrameError`; nothing after it on that connection can be trusted. A connection that ends between
two frames gives None, one that ends inside a frame raises ConnectionError.
"""

import asyncio
import select
import socket
import struct
import threading
import time
from typing import Any, Generic, TypeVar, overload

import msgspec

from melodeon.coord.messages import Message
from melodeon.core.errors import MelodeonError

T = TypeVar("T")

MAX_FRAME = 16 << 20
"""Bytes of one document."""
_HEADER = struct.Struct(">I")
_RECEIVE = 1 << 16

_ENCODER = msgspec.msgpack.Encoder()
MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
"""The decoder that is used where none is given."""


class FrameError(MelodeonError, ValueError):
    """What came over a connection is no frame of ours, or what was to be sent is too long for one."""


def frame(payload: bytes) -> bytes:
    """A payload with its length before it."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a document of {len(payload)} bytes: a frame holds at most {MAX_FRAME}; send less at once")
    return _HEADER.pack(len(payload)) + payload


def pack(document: msgspec.Struct) -> bytes:
    """One document as a frame."""
    return frame(_ENCODER.encode(document))


def unpack(payload: bytes | bytearray, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The document in a payload."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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


@overload
async def read_frame(reader: asyncio.StreamReader) -> Message | None: ...
@overload
async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None: ...
async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Any] = MESSAGES) -> Any:
    """The next document, or None where the connection ended before it."""
    payload = await read_payload(reader)
    return None if payload is None else unpack(payload, decoder)


async def write_frame(writer: asyncio.StreamWriter, document: msgspec.Struct) -> None:
    """Send a document; waits while the other side is slow. Frames of several tasks do not mix."""
    writer.write(pack(document))
    await writer.drain()


def send(sock: socket.socket, document: msgspec.Struct) -> None:
    """Send a document over a blocking socket, within the socket's own timeout."""
    sock.sendall(pack(document))


class Frames(Generic[T]):
    """Collects bytes as they arrive and gives back whole documents."""

    def __init__(self, kind: type[T] | msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = kind if isinstance(kind, msgspec.msgpack.Decoder) else msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Take some bytes; the documents that they complete."""
        self._rest += data
        found = []
        while (document := self.cut()) is not None:
            found.append(document)
        return found

    def take(self, data: bytes) -> None:
        """Take some bytes, without looking at them yet."""
        self._rest += data

    def cut(self) -> T | None:
        """The next whole document of what was taken, if there is one."""
        if len(self._rest) < _HEADER.size:
            return None
        end = _HEADER.size + _length(self._rest, MAX_FRAME)
        if len(self._rest) < end:
            return None
        payload = self._rest[_HEADER.size : end]
        del self._rest[:end]
        return unpack(payload, self._decoder)

    @property
    def inside(self) -> bool:
        """A frame has begun and is not whole."""
        return bool(self._rest)


class FrameSocket(Generic[T]):
    """A connected socket for threads: one reads, any may write. A read that times out loses nothing.

    After a selector has shown `fileno()` readable, call `read_frame(0)` until it raises TimeoutError: several frames
    may have come at once, and the selector cannot see those that are already in memory.
    """

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._frames = Frames(decoder)
        self._writing = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def read_frame(self, timeout_s: float | None = None) -> T | None:
        """The next document; None at the connection's end; TimeoutError if none is whole in time."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (document := self._frames.cut()) is None:
            self._wait(select.POLLIN, until)
            try:
                data = self._sock.recv(_RECEIVE)
            except BlockingIOError:
                continue
            if not data and self._frames.inside:
                raise ConnectionResetError("the connection ended inside a frame")
            if not data:
                return None
            self._frames.take(data)
        return document

    def write_frame(self, document: msgspec.Struct, timeout_s: float | None = None) -> None:
        """Send a document. After a TimeoutError half a frame may have left: close the connection."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        rest = memoryview(pack(document))
        with self._writing:
            while rest:
                try:
                    rest = rest[self._sock.send(rest) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, until)

    def _wait(self, event: int, until: float | None) -> None:
        poll = select.poll()
        poll.register(self._sock, event)
        left = None if until is None else max(0.0, until - time.monotonic()) * 1000
        if not poll.poll(left):
            raise TimeoutError("nothing came or went over the connection in time")
