"""Connections between the workers of a view change: found by invitation, closed by death, never waited on for ever.

Every worker has a door. Its invitation says where it listens (a Unix socket in the host's abstract namespace, and TCP)
and holds a random word that callers must repeat. A caller says who it is and what it wants; a peer that dies resets the
connection, so nobody needs a heartbeat. Every wait calls `check` at least each 20 ms; it raises when the view is over.
"""

import hmac
import os
import secrets
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from enum import IntEnum
from typing import TypeVar

import msgspec

from melodeon.core.errors import WorkerLost

Check = Callable[[], None]
"""Raises when there is no point in waiting any longer."""

POLL_MS = 20
_HELLO = struct.Struct("<16sBq")
_TIME_LIMIT = struct.pack("ll", 0, POLL_MS * 1000)
"""A `timeval`."""
_MOST_PARTS = 256
"""Of one message; systems allow 1024."""

T = TypeVar("T")

_open: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child (a data loader's) must not keep a dead worker's connections open."""
    for inherited in list(_open):
        inherited.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


class Want(IntEnum):
    """What a caller comes for."""

    STATE = 1
    """The state, once it says GO."""
    NEWS = 2
    """A byte, as soon as the called one has the state."""


class _Invitation(msgspec.Struct, frozen=True):
    word: bytes
    address: str
    port: int
    local: str
    """Name of the Unix socket; empty where there is none."""


class Link:
    """A connection to one worker. `peer` is its number.

    The socket blocks, with the kernel's own time limit of 20 ms: a large send or receive then stays inside the kernel,
    where polling would wake this process for every piece.
    """

    def __init__(self, connected: socket.socket, peer: int = -1) -> None:
        self.socket = connected
        self.peer = peer
        self.is_local = connected.family == getattr(socket, "AF_UNIX", None)
        _open.add(connected)
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME_LIMIT)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME_LIMIT)
        if not self.is_local:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | memoryview, check: Check) -> None:
        """All of it."""
        self.send_parts([memoryview(data)], check)

    def send_parts(self, parts: Sequence[memoryview], check: Check) -> None:
        """All of them, one after the other."""
        left = [part for part in parts if len(part)]
        first = 0
        while first < len(left):
            count = self._try(lambda first=first: self.socket.sendmsg(left[first : first + _MOST_PARTS]))  # type: ignore[misc]
            if count is None:
                check()
                continue
            while first < len(left) and count >= len(left[first]):
                count -= len(left[first])
                first += 1
            if count:
                left[first] = left[first][count:]
                check()

    def fill(self, view: memoryview, check: Check) -> None:
        """Overwrite all of `view` with what comes next."""
        while view:
            count = self._try(lambda view=view: self.socket.recv_into(view, len(view), socket.MSG_WAITALL))  # type: ignore[misc]
            view = view[count or 0 :]
            if view:
                check()

    def take(self, size: int, check: Check) -> bytearray:
        """The next `size` bytes."""
        data = bytearray(size)
        self.fill(memoryview(data), check)
        return data

    def take_some(self, most: int, *, wait: bool = False) -> bytes:
        """What is there, at most `most` bytes; empty if nothing is, with `wait` only after 20 ms."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        return self._try(lambda: self.socket.recv(most, flags)) or b""

    def take_descriptors(self, size: int, check: Check) -> tuple[bytes, list[int]]:
        """The next `size` bytes, sent as one message, and the descriptors that came with them."""
        while True:
            got = self._try(lambda: socket.recv_fds(self.socket, size, 1))
            if got is None:
                check()
                continue
            data, descriptors, _, _ = got
            if len(data) < size:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise self.lost("connection closed")
            return data, descriptors

    def lost(self, why: str | None) -> WorkerLost:
        """The sentence for a broken connection."""
        return WorkerLost(f"worker {self.peer} is gone in the middle of a view change ({why or 'connection closed'})")

    def close(self) -> None:
        """Let go."""
        self.socket.close()

    def _try(self, act: Callable[[], T]) -> T | None:
        """What `act` gives; None if the time limit is over first."""
        try:
            got = act()
        except BlockingIOError:
            return None
        except OSError as error:
            raise self.lost(error.strerror) from error
        if not got:
            raise self.lost("connection closed")
        return got


class Reception:
    """Where others reach this worker."""

    def __init__(self, address: str) -> None:
        self._word = secrets.token_bytes(16)
        self._listeners: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        remote = socket.create_server((address, 0), family=family, backlog=128)
        self._add(remote)
        name = f"melodeon-{secrets.token_hex(8)}"
        try:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            local.bind(f"\0{name}")  # abstract: no file, gone with the process
            local.listen(128)
            self._add(local)
        except (OSError, AttributeError):
            name = ""  # another system than Linux: everybody comes by TCP
        self.invitation = msgspec.msgpack.encode(_Invitation(self._word, address, remote.getsockname()[1], name))
        """For the other workers of the view, and nobody else."""

    def _add(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        _open.add(listener)
        self._listeners.append(listener)

    def admit(self, expected: Iterable[tuple[Want, int]], check: Check) -> dict[tuple[Want, int], Link]:
        """Let everybody in who is expected; anybody else is sent away."""
        missing = set(expected)
        inside: dict[tuple[Want, int], Link] = {}
        strangers: dict[int, tuple[Link, bytearray]] = {}
        poll = select.poll()
        doors = {listener.fileno(): listener for listener in self._listeners}
        for descriptor in doors:
            poll.register(descriptor, select.POLLIN)
        with ExitStack() as on_failure:
            while missing:
                check()
                for descriptor, _ in poll.poll(POLL_MS):
                    if descriptor in doors:
                        with suppress(OSError):
                            link = Link(doors[descriptor].accept()[0])
                            on_failure.callback(link.close)
                            strangers[link.socket.fileno()] = (link, bytearray())
                            poll.register(link.socket, select.POLLIN)
                        continue
                    link, said = strangers[descriptor]
                    caller = self._listen(link, said)
                    if caller is None and link.socket.fileno() >= 0:
                        continue
                    poll.unregister(descriptor)
                    del strangers[descriptor]
                    if caller in missing:
                        missing.remove(caller)
                        link.peer = caller[1]
                        inside[caller] = link
                    else:
                        link.close()
            on_failure.pop_all()
        for link, _ in strangers.values():
            link.close()
        return inside

    def _listen(self, link: Link, said: bytearray) -> tuple[Want, int] | None:
        """Who it is, once it has said it; one with a wrong word finds the connection closed."""
        try:
            said += link.take_some(_HELLO.size - len(said))
        except WorkerLost:
            link.close()
            return None
        if len(said) < _HELLO.size:
            return None
        word, want, number = _HELLO.unpack(said)
        if not hmac.compare_digest(word, self._word) or want not in list(Want):
            link.close()
            return None
        return Want(want), number

    def close(self) -> None:
        """Let nobody in any more; those who wait outside see it."""
        for listener in self._listeners:
            listener.close()


def call(me: int, peer: int, invitation: bytes, want: Want, *, local: bool, check: Check) -> Link:
    """Go to a worker's door and say what this one wants; through the host's own memory if `local` and possible."""
    invited = msgspec.msgpack.decode(invitation, type=_Invitation)
    connected = _connect_local(invited.local) if local and invited.local else None
    try:
        if connected is None:
            connected = _connect(invited.address, invited.port, check)
        link = Link(connected, peer)
        link.send(_HELLO.pack(invited.word, want, me), check)
    except BaseException as error:
        if connected is not None:
            connected.close()
        if not isinstance(error, OSError):
            raise
        raise WorkerLost(
            f"worker {peer} at {invited.address}:{invited.port} cannot be reached in a view change "
            f"({error.strerror or error})"
        ) from error
    return link


def _connect_local(name: str) -> socket.socket | None:
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.connect(f"\0{name}")
    except OSError:  # not on this host after all, or in another network namespace
        local.close()
        return None
    return local


def _connect(address: str, port: int, check: Check) -> socket.socket:
    """A TCP connection; a host that does not answer is given up when `check` says so."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    remote = socket.socket(family, socket.SOCK_STREAM)
    try:
        remote.setblocking(False)
        with suppress(BlockingIOError):
            remote.connect((address, port))
        poll = select.poll()
        poll.register(remote, select.POLLOUT)
        check()
        while not poll.poll(POLL_MS):
            check()
        failed = remote.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
    except BaseException:
        remote.close()
        raise
    return remote
