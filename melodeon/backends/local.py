"""The workers of one job as local processes: start them, hear them, and leave none behind.

Each worker is the leader of its own process group, so that its loader processes end with it, and holds two pipes: one
for its events, and a lifeline whose other end closes with this process, however that goes. Everything is waited for in
one selector (events, output, exits, signals), so nothing polls. The first failure ends the run: the rest are told
(SIGTERM), then killed after a grace.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from melodeon.backends.outcome import Exit, Outcome, judge
from melodeon.backends.signals import forwarded_signals
from melodeon.backends.streams import Lines
from melodeon.backends.tail import events_in
from melodeon.core.determinism import level_env
from melodeon.core.launch import Launch

Event = dict[str, object]
OnEvent = Callable[[Event], None]
OnOutput = Callable[[str, bytes], None]
"""Called with `stdout` or `stderr` and whole lines of worker 0."""

GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
SETTLE_S = 1.0
"""A worker that lost its peer often ends before the peer's own exit is seen: how long the culprit may take."""


def run_local(
    command: Sequence[str],
    launches: Sequence[Launch],
    run_dir: Path,
    *,
    env: Mapping[str, str] | None = None,
    on_event: OnEvent | None = None,
    on_output: OnOutput | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run `python *command` once a launch, to the end of all of them.

    `env` is added to each worker's environment last, over what its level sets. `run_dir` must exist; it receives
    `events.jsonl`, `worker-<k>.log` and `.err`.
    """
    with contextlib.ExitStack() as stack:
        crew = _Crew(run_dir, on_event or _ignore_event, on_output or _ignore_output, grace_s, stack)
        stack.callback(crew.abandon)
        stack.enter_context(forwarded_signals(crew.wake))
        for launch in launches:
            crew.start(command, launch, env or {})
        crew.watch()
        return judge(crew.exits, crew.errors, cancelled=crew.cancelled)


def worker_env(launch: Launch, extra: Mapping[str, str], inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """A worker's whole environment, given what it inherits: by default from this process."""
    level = level_env(launch.determinism, launch.threads) if launch.determinism else {}
    return {
        # Host names often resolve to an address that gloo cannot bind; local workers only need the loopback.
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        **(os.environ if inherited is None else inherited),
        "PYTHONUNBUFFERED": "1",
        **level,
        **extra,
        **launch.to_env(),
    }


class _Crew:
    """The running workers, and what has been heard from them."""

    def __init__(
        self, run_dir: Path, on_event: OnEvent, on_output: OnOutput, grace_s: float, stack: contextlib.ExitStack
    ) -> None:
        self.exits: list[Exit] = []
        self.errors: list[Event] = []
        self.cancelled = False
        self._run_dir, self._on_event, self._on_output, self._grace_s, self._stack = (
            run_dir, on_event, on_output, grace_s, stack,
        )  # fmt: skip
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._flushes: dict[int, list[Callable[[], None]]] = {}
        self._told = self._was_signalled = False
        self._deadline: float | None = None
        self._on_deadline: Callable[[], None] = self.kill
        self._events = stack.enter_context((run_dir / "events.jsonl").open("ab"))
        # One lifeline for all: only this process holds its write end, and nothing inherits it.
        self._lifeline, held = os.pipe()
        stack.callback(os.close, self._lifeline)
        stack.callback(os.close, held)
        woken, self.wake = os.pipe()
        stack.callback(os.close, woken)
        stack.callback(os.close, self.wake)
        os.set_blocking(self.wake, False)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._signalled(os.read(woken, 64)))

    def start(self, command: Sequence[str], launch: Launch, extra: Mapping[str, str]) -> None:
        """Start one worker and listen to it."""
        heard, events = os.pipe()
        self._stack.callback(os.close, heard)
        full = replace(launch, event_fd=events, lifeline_fd=self._lifeline)
        out, err = (
            self._stack.enter_context((self._run_dir / f"worker-{launch.worker}.{end}").open("ab", buffering=0))
            for end in ("log", "err")
        )
        # Worker 0 is also shown, so its output comes through here; the others write their logs themselves.
        shown = launch.worker == 0
        try:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=worker_env(full, extra),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if shown else out,
                stderr=subprocess.PIPE if shown else err,
                pass_fds=(events, self._lifeline),
                start_new_session=True,
            )
        finally:
            os.close(events)
        self._running[launch.worker] = process
        self._flushes[launch.worker] = [self._listen(heard, self._heard)]
        for name, pipe, log in (("stdout", process.stdout, out), ("stderr", process.stderr, err)):
            if pipe is not None:
                self._stack.enter_context(pipe)
                self._flushes[launch.worker].append(self._listen(pipe.fileno(), self._shower(name, log.write)))
        exited = _exit_fd(process)
        self._stack.callback(os.close, exited)
        self._selector.register(exited, selectors.EVENT_READ, lambda: self._exited(launch.worker, exited))

    def watch(self) -> None:
        """Serve events, output, exits, signals and the deadline until every worker has ended."""
        while self._running:
            timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = self._selector.select(timeout)
            for key, _ in ready:
                key.data()
            if not ready and self._deadline is not None and time.monotonic() >= self._deadline:
                self._deadline = None
                self._on_deadline()

    def kill(self) -> None:
        """End every worker and its group at once; the exits are seen as usual."""
        self._told = True
        for process in self._running.values():
            _kill_group(process)

    def abandon(self) -> None:
        """Leave nothing behind when this side failed; after a whole run there is nothing to do."""
        self.kill()
        for process in self._running.values():
            process.wait()

    def _tell(self, number: int = signal.SIGTERM) -> None:
        self._told = True
        for process in self._running.values():
            process.send_signal(number)
        self._deadline, self._on_deadline = time.monotonic() + self._grace_s, self.kill

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if self._was_signalled:
                self.kill()
            else:
                self._was_signalled = True
                self.cancelled = not self._told  # a run that had already failed did fail
                self._tell(number)

    def _exited(self, worker: int, exited: int) -> None:
        self._selector.unregister(exited)
        process = self._running.pop(worker)
        # Not reaped yet, so the group's number is still its own: what the worker left behind goes with it.
        _kill_group(process)
        code = process.wait()
        for flush in self._flushes.pop(worker):
            flush()
        self.exits.append(Exit(worker=worker, code=code, told=self._told))
        if code == 0 or self._told:
            return
        own = [error for error in self.errors if error.get("worker") == worker]
        if own and own[0].get("type") == "WorkerLost":
            if self._deadline is None:
                self._deadline, self._on_deadline = time.monotonic() + SETTLE_S, self._tell
        else:
            self._tell()

    def _listen(self, fd: int, sink: Callable[[bytes], None]) -> Callable[[], None]:
        """Serve a pipe from now on; the result drains it and stops, without waiting for others that hold it open."""
        os.set_blocking(fd, False)
        lines = Lines(sink)

        def read() -> bool:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return False
            lines.feed(data)
            if not data:
                stop()
            return bool(data)

        def stop() -> None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)

        def flush() -> None:
            while read():
                pass
            stop()
            lines.close()

        self._selector.register(fd, selectors.EVENT_READ, read)
        return flush

    def _shower(self, name: str, log: Callable[[bytes], object]) -> Callable[[bytes], None]:
        def show(data: bytes) -> None:
            log(data)
            self._on_output(name, data)

        return show

    def _heard(self, data: bytes) -> None:
        for line, event in events_in(data):
            self._events.write(line + b"\n")
            self._events.flush()
            if event.get("kind") == "error":
                self.errors.append(event)
            self._on_event(event)


def _exit_fd(process: "subprocess.Popen[bytes]") -> int:
    """A descriptor that becomes readable when the process has ended."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    # Without pidfds (macOS) a thread waits. It also reaps, so the group is killed by a number that is free by then.
    ended, held = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(held)

    threading.Thread(target=wait, name="melodeon-wait", daemon=True).start()
    return ended


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # an empty group, or (macOS) one of zombies only
        os.killpg(process.pid, signal.SIGKILL)


def _ignore_event(_event: Event) -> None:
    """Nobody listens to events."""


def _ignore_output(_name: str, _data: bytes) -> None:
    """Nobody listens to output."""
