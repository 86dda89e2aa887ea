"""The zygote: a process that has imported torch, of which the nurseries of a controller's jobs are forked.

It has one thread and no job's state, so a fork of it is as a fresh process that has come as far as this one. The child
takes after whoever asked: limits, processors, niceness, folder, environment and descriptors are the agent's, as if the
agent had started it. What cannot be changed once an interpreter runs must be the same already, else the answer is no.

It is given a socket that listens already, so nobody who comes early is sent away. It ends when its controller does: the
lifeline closes. Nurseries live on.

    python -m melodeon.runtime.zygote SOCKET_FD LIFELINE_FD [--user NAME] [--preload MODULE,MODULE,...]
"""

import argparse
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from melodeon.coord.limits import become, find_user
from melodeon.coord.niceness import stand_back
from melodeon.coord.sprout import Sprout, Sprouted, peer, read_early
from melodeon.coord.wire import FrameError, Frames, pack
from melodeon.runtime import nursery

HEARING_S = 2.0
"""How long somebody may take to say what he wants."""
MOST_FDS = 2
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a process is allowed, and how far it stands back."""

    limits: dict[int, tuple[int, int]]
    cores: set[int]
    nice: int

    @classmethod
    def of(cls, pid: int) -> "Standing":
        """That of a process of this user."""
        return cls(
            limits={kind: resource.prlimit(pid, kind) for kind in _LIMITS},
            cores=os.sched_getaffinity(pid),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
        )

    def take(self) -> None:
        """Have it from now on."""
        for kind, limit in self.limits.items():
            resource.setrlimit(kind, limit)
        os.sched_setaffinity(0, self.cores)
        stand_back(self.nice)


class Zygote:
    """Imports, then answers one after the other."""

    def __init__(self, server: socket.socket, lifeline_fd: int, names: Iterable[str]) -> None:
        self._server, self._lifeline_fd = server, lifeline_fd
        before = dict(os.environ)
        self._early = read_early(before)
        nursery.preload(names)
        self._added = {name: value for name, value in os.environ.items() if name not in before}
        """What imports have put into the environment."""

    def serve(self) -> None:
        """Serve until it is killed, by the lifeline's end if by nothing else."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # agents watch their nurseries: here nobody asks how they ended
        while True:
            call, _ = self._server.accept()
            with call, contextlib.suppress(OSError, FrameError):
                self._answer(call)

    def _answer(self, call: socket.socket) -> None:
        asker, uid = peer(call)
        if uid != os.geteuid():
            return
        call.settimeout(HEARING_S)
        fds: list[int] = []
        try:
            request = _hear(call, fds)
            call.sendall(pack(self._sprout(request, asker, fds)))
        finally:
            for fd in fds:
                os.close(fd)

    def _sprout(self, request: Sprout, asker: int, fds: list[int]) -> Sprouted:
        if request.python != sys.executable:
            return Sprouted(refused=f"this is {sys.executable}, not {request.python}")
        wanted = read_early(request.env)
        if differ := sorted(name for name, _ in wanted.items() ^ self._early.items()):
            return Sprouted(refused=f"other values of {', '.join(dict.fromkeys(differ))} are needed from the start")
        if not 1 <= len(fds) <= MOST_FDS:
            return Sprouted(refused=f"{len(fds)} descriptors came along: a log, and perhaps a lifeline, are needed")
        standing = Standing.of(asker)
        pid = os.fork()
        if pid == 0:
            self._be_nursery(request, standing, fds)
        return Sprouted(pid=pid)

    def _be_nursery(self, request: Sprout, standing: Standing, fds: list[int]) -> NoReturn:
        code = 1
        try:
            os.setsid()
            log, *rest = fds
            _speak_into(log)
            self._server.close()
            os.close(self._lifeline_fd)
            standing.take()
            os.environ.clear()
            os.environ.update(self._added | request.env)
            os.chdir(request.workdir)
            if not sys.flags.safe_path:
                sys.path[0] = request.workdir  # as for any `python -m`
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nursery.begin(request.socket, rest[0] if rest else None, request.preload)
            code = 0
        except BaseException:  # noqa: BLE001 - the copy of the zygote ends here, whatever it was
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _hear(call: socket.socket, fds: list[int]) -> Sprout:
    """What the caller wants; descriptors that come along are added to `fds`, also if the rest is bad."""
    frames = Frames(Sprout)
    while True:
        data, more, _, _ = socket.recv_fds(call, 1 << 16, MOST_FDS)
        fds.extend(more)
        for request in frames.feed(data):
            return request
        if not data:
            raise ConnectionResetError("the caller left before he said what he wanted")


def _speak_into(log: int) -> None:
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - for its descriptor
        os.dup2(nothing.fileno(), 0)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)


def die_with(lifeline_fd: int) -> None:
    """Have the kernel end this process when the lifeline closes, also in the middle of an import, and no fork of it."""
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    ready, _, _ = select.select([lifeline_fd], [], [], 0)
    if ready:
        sys.exit()  # it was closed before


def main() -> None:
    """Import and serve."""
    parser = argparse.ArgumentParser(prog="python -m melodeon.runtime.zygote")
    parser.add_argument("socket", type=int)
    parser.add_argument("lifeline", type=int)
    parser.add_argument("--user", default="")
    parser.add_argument("--preload", default=",".join(nursery.PRELOAD))
    options = parser.parse_args()
    die_with(options.lifeline)
    if options.user:
        become(find_user(options.user))
    with socket.socket(fileno=options.socket) as server:
        Zygote(server, options.lifeline, filter(None, options.preload.split(","))).serve()


if __name__ == "__main__":
    main()
