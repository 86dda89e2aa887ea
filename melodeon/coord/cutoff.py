"""A process loses its network, for tests: connections go silent, none of them closes, new ones lead nowhere.

Each socket's descriptor is made to mean one end of a pair whose other end nobody reads, while the real connection is
kept open and left alone: its peer sees what it would see of a host whose cable was pulled, nothing. The poll sets of
this process (asyncio's, gloo's) are told too. When the cut heals, what was written meanwhile is sent on and the real
connections come back, as TCP would have it; connections that were begun meanwhile end.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGAIN_S = 0.005
"""How often sockets are looked for that were opened by other than Python's means."""
_FDS = Path("/proc/self/fd")
_EPOLL = "anon_inode:[eventpoll]"
_ADD, _DELETE = 1, 2
_TIME_LIMITS = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)

Spared = Callable[[socket.socket], bool]


class _Event(ctypes.Structure):
    _pack_ = 1 if platform.machine() == "x86_64" else 0  # as the kernel has it: without gaps there, and only there
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class _Severed:
    fd: int
    name: str
    """What the descriptor means now, as the kernel names it."""
    real: int
    """The real connection, under another descriptor."""
    far: socket.socket
    begun: bool
    """It was a connection before the cut."""


class Cutoff:
    """One loss of the network."""

    def __init__(self, spared: Spared = lambda _: False) -> None:
        """`spared` says which connections stay, within the host."""
        self._spared = spared
        self._severed: list[_Severed] = []
        self._known: set[str] = set()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._connect = socket.socket.connect

    def begin(self) -> None:
        """From now on nothing comes and nothing goes."""
        cutoff = self

        def connect(self: socket.socket, _address: object) -> None:
            with cutoff._lock:
                cutoff._sever(self.fileno(), begun=False)

        socket.socket.connect = connect  # type: ignore[method-assign,assignment]
        self._sweep()
        threading.Thread(target=self._watch, name="melodeon-cutoff", daemon=True).start()

    def heal(self) -> None:
        """The network is back."""
        self._over.set()
        socket.socket.connect = self._connect  # type: ignore[method-assign]
        with self._lock:
            for severed in self._severed:
                self._mend(severed)

    def _watch(self) -> None:
        while not self._over.wait(AGAIN_S):
            self._sweep()

    def _sweep(self) -> None:
        with self._lock:
            if self._over.is_set():
                return  # it has healed while this one was on its way
            for fd, name in _descriptors():
                if name.startswith("socket:") and name not in self._known and self._leads_out(fd):
                    self._sever(fd, begun=True)

    def _leads_out(self, fd: int) -> bool:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as found:
            return not _is_pair(found) and not self._spared(found)
        return False

    def _sever(self, fd: int, *, begun: bool) -> None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as found:
            near, far = _pair(found.family)
            near.setblocking(not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)
            for option in _TIME_LIMITS:
                near.setsockopt(socket.SOL_SOCKET, option, found.getsockopt(socket.SOL_SOCKET, option, 16))
            self._known |= {_name(fd), _name(near.fileno()), _name(far.fileno())}
            severed = _Severed(fd, _name(near.fileno()), os.dup(fd), far, begun)
            self._severed.append(severed)
            _exchange(fd, near.fileno())
            near.close()

    def _mend(self, severed: _Severed) -> None:
        with contextlib.suppress(OSError):
            if severed.begun and _name(severed.fd) == severed.name:
                unsent = _drain(severed.far)
                if unsent:  # not one that listens
                    _send(severed.real, unsent)
                _exchange(severed.fd, severed.real)
        os.close(severed.real)
        severed.far.close()


def _exchange(fd: int, other: int) -> None:
    """Make `fd` mean what `other` means, in this process's poll sets too."""
    watched = list(_watching(fd))
    for poll, _ in watched:
        _control(poll, _DELETE, fd, None)
    os.dup2(other, fd, inheritable=os.get_inheritable(fd))
    for poll, event in watched:
        _control(poll, _ADD, fd, event)


def _watching(fd: int) -> Iterator[tuple[int, _Event]]:
    for poll, name in _descriptors():
        if name == _EPOLL:
            for line in Path(f"/proc/self/fdinfo/{poll}").read_text().splitlines():
                words = line.split()
                if words and words[0] == "tfd:" and int(words[1]) == fd:
                    yield poll, _Event(int(words[3], 16), int(words[5], 16))


def _control(poll: int, what: int, fd: int, event: _Event | None) -> None:
    libc: Any = ctypes.CDLL(None)
    libc.epoll_ctl(poll, what, fd, None if event is None else ctypes.byref(event))


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for path in list(_FDS.iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append((int(path.name), str(path.readlink())))
    return found


def _name(fd: int) -> str:
    return str((_FDS / str(fd)).readlink())


def _is_pair(found: socket.socket) -> bool:
    """A pair of sockets within the process or between it and its children, as asyncio has one to wake itself."""
    if found.family != socket.AF_UNIX:
        return False
    try:
        return not found.getsockname() and not found.getpeername()
    except OSError:
        return False


def _pair(family: int) -> tuple[socket.socket, socket.socket]:
    """Of the same family, so that the same options can be set."""
    if family == socket.AF_UNIX:
        return socket.socketpair()
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen(1)
        near = socket.socket(family)
        _real_connect(near, listener.getsockname())
        return near, listener.accept()[0]


_real_connect = socket.socket.connect


def _send(fd: int, data: bytes) -> None:
    with socket.socket(fileno=os.dup(fd)) as real:
        was_blocking = real.getblocking()
        real.setblocking(True)
        try:
            real.sendall(data)
        finally:
            real.setblocking(was_blocking)


def _drain(far: socket.socket) -> bytes:
    far.setblocking(False)
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while some := far.recv(1 << 16):
            data += some
    return bytes(data)
