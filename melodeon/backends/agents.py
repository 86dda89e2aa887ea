"""The agents that one machine runs for a job: kept running while the job lasts, and nothing of theirs left behind.

An agent that dies is started again and finds its workers, who have trained on. All of them hold the reading end of one
pipe, the lifeline: when this process goes, however it goes, agents, nurseries and workers end by themselves.
"""

import contextlib
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from melodeon.coord.agent_config import AgentConfig, write_config
from melodeon.coord.marks import kill_group, last_line, read_mark, read_marks
from melodeon.coord.store import StoreUnreachable
from melodeon.core.errors import MelodeonError, NotFound, UsageError

MOST_FAILURES, MOST_KILLS, RESTARTS_S = 5, 50, 10.0
"""An agent that ended by itself this often within this time will not do better; one that was killed may."""
LONGEST_SOCKET = 100
"""Bytes of a Unix socket's path that every system takes."""


class Agents:
    """Agents as processes of this one."""

    def __init__(
        self, env: Mapping[str, str], selector: selectors.BaseSelector, lifeline: int, *, begun: Callable[[], bool]
    ) -> None:
        """`env` is theirs and, but for its place, every worker's; `begun`: whether the job has been seen to run."""
        self._env, self._selector, self._lifeline, self._begun = env, selector, lifeline, begun
        self._configs: dict[str, AgentConfig] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._exits: dict[str, int] = {}
        """For each running agent, a descriptor that becomes readable when it has ended."""
        self._restarts: dict[tuple[str, int], deque[float]] = {}
        self.hopeless: MelodeonError | None = None
        """Why one of them is not started again, though the job is not over."""

    @property
    def sockets(self) -> tuple[str, ...]:
        """Where they are reached from this machine."""
        return tuple(config.socket for config in self._configs.values())

    @property
    def are_needed(self) -> bool:
        """Whether any still runs, and no other has given up."""
        return bool(self._running) and self.hopeless is None

    @property
    def running(self) -> dict[str, int]:
        """Their processes, by name."""
        return {agent: process.pid for agent, process in self._running.items()}

    def describe(self, config: AgentConfig) -> None:
        """Write down what one more will be started with: guests and other terminals read it."""
        config = msgspec.structs.replace(config, lifeline_fd=self._lifeline)
        write_config(config.node_dir / "agent.json", config)
        self._configs[config.agent] = config

    def start(self) -> None:
        """Start all that were described."""
        for config in self._configs.values():
            self._start(config)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to each."""
        for process in self._running.values():
            process.send_signal(number)

    def kill(self, agent: str) -> None:
        """End one that stands still; it is started again."""
        self._running[agent].kill()

    def sweep(self) -> None:
        """End whatever still runs, makers before what they make."""
        for process in self._running.values():
            kill_group(process.pid)
            process.wait()
        for exited in self._exits.values():
            os.close(exited)
        folders = [config.node_dir for config in self._configs.values()]
        _end_all([pid for folder in folders if (pid := read_mark(folder / "nursery.pid"))])
        _end_all([pid for folder in folders for pid in read_marks(folder).values()])

    def _start(self, config: AgentConfig) -> None:
        with (config.node_dir / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "melodeon.coord.agent", str(config.node_dir / "agent.json")],
                cwd=config.workdir or None,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._lifeline,),
                start_new_session=True,
            )
        self._running[config.agent] = process
        exited = self._exits[config.agent] = os.pidfd_open(process.pid)
        self._selector.register(exited, selectors.EVENT_READ, partial(self._ended, config))

    def _ended(self, config: AgentConfig) -> None:
        agent = config.agent
        exited = self._exits.pop(agent)
        self._selector.unregister(exited)
        os.close(exited)
        code = self._running.pop(agent).wait()
        if code != 0:
            self.hopeless = self.hopeless or self._despair(config, code)
            if self.hopeless is None:
                self._start(config)

    def _despair(self, config: AgentConfig, code: int) -> MelodeonError | None:
        """Why an agent that ended like this would not do better another time, if so."""
        log = config.node_dir / "agent.log"
        said = last_line(log).removeprefix("error: ")
        if code == UsageError.exit_code:
            return UsageError(said)
        if code == NotFound.exit_code and config.guest:  # the job has ended, on another machine
            return NotFound(said)
        if code == StoreUnreachable.exit_code and (config.guest or not self._begun()):
            return StoreUnreachable(said)
        most = MOST_KILLS if code < 0 else MOST_FAILURES
        recent = self._restarts.setdefault((config.agent, most), deque(maxlen=most))
        recent.append(time.monotonic())
        if len(recent) == most and recent[-1] - recent[0] < RESTARTS_S:
            why = f"{said} (see {log})" if has_room(log) else f"no room is left on the disk of {log.parent}"
            return MelodeonError(f"agent {config.agent} ended {most} times within {RESTARTS_S:.0f} s: {why}")
        return None


@contextlib.contextmanager
def kept_agents(
    env: Mapping[str, str], selector: selectors.BaseSelector, *, begun: Callable[[], bool]
) -> Iterator[Agents]:
    """Agents for as long as the block lasts; nothing of theirs outlives it."""
    lifeline, held = os.pipe()
    agents = Agents(env, selector, lifeline, begun=begun)
    try:
        yield agents
    finally:
        os.close(held)
        agents.sweep()
        os.close(lifeline)


def wake_pipe(selector: selectors.BaseSelector, stack: contextlib.ExitStack, heard: Callable[[bytes], None]) -> int:
    """A descriptor to write signals' numbers to, which the selector then hands to `heard`."""
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
        stack.callback(os.close, fd)
    selector.register(woken, selectors.EVENT_READ, lambda: heard(os.read(woken, 64)))
    return wake


def socket_path(run_dir: Path, name: str, stack: contextlib.ExitStack) -> Path:
    """In the run's folder where that is short enough for a socket, else in one of its own; gone with the stack."""
    path = run_dir / f"{name}.sock"
    if len(bytes(path)) > LONGEST_SOCKET:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="melodeon-"))
        path = Path(folder) / f"{secrets.token_hex(2)}.s"
    stack.callback(path.unlink, missing_ok=True)
    return path


def has_room(path: Path) -> bool:
    """Whether a process that may write there can write a line."""
    try:
        return shutil.disk_usage(path).free > 0
    except OSError:
        return True


def _end_all(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with selectors.DefaultSelector() as selector:
            kill_group(pid)
            selector.register(ended, selectors.EVENT_READ)
            selector.select(5.0)  # a process that the kernel cannot end at once is not ours to wait for
        os.close(ended)
