"""The nursery: a process that has imported torch once, and makes workers by forking.

A fresh interpreter needs seconds until torch is there; a fork of this one needs milliseconds. It serves one agent over
the agent's socket, has one thread (a fork copies no other) and never touches a GPU. Workers outlive both the agent and
this process: when the agent vanishes the nursery calls again until a grace is over, and when the nursery dies the agent
starts another. When the launcher goes away (the lifeline closes), all go.

    python -m melodeon.runtime.nursery SOCKET [--lifeline FD] [--preload MODULE,MODULE,...]
"""

import argparse
import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from melodeon.coord.failpoint import failpoint, identify
from melodeon.coord.lines import Brood, Start
from melodeon.coord.marks import begin_mark, kill_group, write_mark
from melodeon.coord.niceness import stand_back
from melodeon.coord.wire import Frames, pack
from melodeon.runtime import lifeline, nursery_child

GRACE_S = 60.0
"""How long an agent may be away before its workers are given up."""
RETRY_S = 0.05
"""Between two calls to a socket where nobody listens."""
SEND_S = 5.0
"""An agent that does not read for this long is as good as gone."""

PRELOAD = (
    *("torch", "torch.distributed", "torch._dynamo", "torch.optim", "torch.utils.data", "numpy"),
    "melodeon.runtime.join",
)
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class Nursery:
    """Serves one agent: starts what it asks for, tells it what ended."""

    def __init__(self, address: str, lifeline_fd: int | None, *, grace_s: float = GRACE_S) -> None:
        self._address, self._lifeline_fd, self._grace_s = address, lifeline_fd, grace_s
        self._agent: socket.socket | None = None
        self._frames = Frames(Start)
        self._alone_since = time.monotonic()
        self._alive: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._over = False

    def serve(self) -> None:
        """Serve until told to end (SIGTERM), until the launcher is gone, or until the agent stays away."""
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, _noted)
        self._selector.register(self._woken, selectors.EVENT_READ, self._signalled)
        if self._lifeline_fd is not None:
            self._selector.register(self._lifeline_fd, selectors.EVENT_READ, self._launcher_gone)
        try:
            while not self._over:
                if self._agent is None:
                    self._call()
                for key, _ in self._selector.select(None if self._agent else RETRY_S):
                    key.data()
        finally:
            self._kill_all()

    def _call(self) -> None:
        if time.monotonic() - self._alone_since > self._grace_s:
            self._over = True
            return
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.settimeout(SEND_S)
        try:
            agent.connect(self._address)
        except OSError:
            agent.close()
            return
        self._agent, self._frames = agent, Frames(Start)
        self._selector.register(agent, selectors.EVENT_READ, self._heard)
        self._tell()

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent)
            self._agent.close()
            self._agent, self._alone_since = None, time.monotonic()

    def _tell(self) -> None:
        if self._agent is None:
            return
        try:
            self._agent.sendall(pack(Brood(pid=os.getpid(), workers=self._alive, ended=self._ended)))
        except OSError:
            self._hang_up()

    def _heard(self) -> None:
        assert self._agent is not None
        try:
            data = self._agent.recv(1 << 16)
            orders = self._frames.feed(data)
        except (OSError, ValueError):
            data, orders = b"", []
        for order in orders:
            self._start(order)
        if not data:
            self._hang_up()

    def _start(self, order: Start) -> None:
        if order.worker not in self._alive and order.worker not in self._ended:
            try:
                self._alive[order.worker] = self._make(order)
            except OSError as error:
                # No room for one more, among processes or on the disk: it is lost, and those that run here are not.
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"worker {order.worker} cannot be made: {error}\n")
                self._ended[order.worker] = -signal.SIGKILL
        self._tell()

    def _make(self, order: Start) -> int:
        failpoint("nursery.start")
        begin_mark(Path(order.mark))
        failpoint("nursery.begun")
        # A signal meant for the child must not be taken by what it has inherited from here.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_worker(order)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        failpoint("nursery.forked")
        return pid

    def _be_worker(self, order: Start) -> NoReturn:
        code = 1
        try:
            os.setsid()
            stand_back()
            write_mark(Path(order.mark))
            self._forget()
            identify(str(order.worker))
            failpoint("worker.made")
            _redirect(order.out, order.err)
            os.environ.update(order.env)
            if self._lifeline_fd is not None:
                lifeline.watch(self._lifeline_fd)
            code = nursery_child.run(order.argv)
        except BaseException:  # noqa: BLE001 - what a script raises, `run` has shown: this is ours
            traceback.print_exc()
        finally:
            nursery_child.leave(code)

    def _forget(self) -> None:
        """In the child: let go of everything that is the nursery's."""
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)
        if self._agent is not None:
            self._agent.close()

    def _signalled(self) -> None:
        numbers = os.read(self._woken, 256)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._over = True
        if signal.SIGCHLD in numbers and self._reap():
            self._tell()

    def _reap(self) -> bool:
        before = len(self._ended)
        for worker, pid in list(self._alive.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # Not reaped yet, so the group's number is still its own: what the worker left behind goes with it.
            kill_group(pid)
            self._ended[worker] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del self._alive[worker]
        return len(self._ended) > before

    def _launcher_gone(self) -> None:
        assert self._lifeline_fd is not None
        self._over = not os.read(self._lifeline_fd, 1)

    def _kill_all(self) -> None:
        for pid in self._alive.values():
            kill_group(pid)


def _noted(_number: int, _frame: object) -> None:
    """Signals are read from the wake-up pipe."""


def _redirect(out: str, err: str) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    for fd, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644), fd)


def preload(names: Iterable[str]) -> None:
    """Import what all children need."""
    for name in names:
        importlib.import_module(name)
    # What is here stays, in every child: collecting it again would only copy its pages.
    gc.collect()
    gc.freeze()


def begin(address: str, lifeline_fd: int | None, names: Sequence[str] | None = None) -> None:
    """Be the nursery of the agent at that address, to the end."""
    stand_back()
    preload(PRELOAD if names is None else names)
    identify("nursery")
    Nursery(address, lifeline_fd).serve()


def main() -> None:
    """Import everything, then serve."""
    parser = argparse.ArgumentParser(prog="python -m melodeon.runtime.nursery")
    parser.add_argument("socket")
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--preload", default=",".join(PRELOAD))
    options = parser.parse_args()
    begin(options.socket, options.lifeline, tuple(filter(None, options.preload.split(","))))


if __name__ == "__main__":
    main()
