"""The peers of the live benchmarks, started as their users start them: torchrun's elastic agents, and torchft.

torchrun restarts every process when one is lost or an agent joins, and goes on from the last checkpoint, which is kept
in memory here. An agent that joins needs `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` (as shipped, the job dies). Its waits
are shortened from their defaults, in its favour: with them, losing an agent costs 30 s more. torchft's processes are
replica groups of one, with the lighthouse's heartbeat time-out at 1 s in place of 5 s.
"""

import importlib.util
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from _live import SCRIPTS, Commits, read_commits, step_times, thread_env, wait_until

RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=120"
HEARTBEAT_TIMEOUT_MS = 1000
GRACE_S = 20.0
_NS = 1e-9


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Crew:
    """Processes of a peer, the commits of those that train, and an end to all of them."""

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self.logs = folder / f"{type(self).__name__.lower()}-{model}-commits"
        self.logs.mkdir(parents=True)
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.training():  # an agent that was killed leaves its workers behind
            kill(pid)

    def launch(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start one process, its words to a file."""
        with self.log_of(len(self._running)).open("wb") as said:
            process = subprocess.Popen(command, env={**thread_env(), **env}, stdout=said, stderr=said)
        self._running.append(process)
        return process

    def log_of(self, number: int) -> Path:
        """What the process that was started as this one says."""
        return self._folder / f"{type(self).__name__.lower()}-{self.model}-{number}.log"

    def said(self) -> str:
        """The last words of all of them."""
        paths = sorted(self._folder.glob(f"{type(self).__name__.lower()}-{self.model}-*.log"))
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)

    def commits(self) -> dict[int, Commits]:
        """By process."""
        return {int(re.sub(r"\D", "", name)): commits for name, commits in read_commits(self.logs).items()}

    def training(self) -> list[int]:
        """Processes that have committed something and live."""
        return [pid for pid in self.commits() if _is_alive(pid)]

    def until(self, true: Callable[[], bool], limit_s: float = 180.0) -> None:
        """Wait, as long as anything runs."""

        def why_not() -> str:
            if any(process.poll() is None for process in self._running):
                return ""
            return f"{type(self).__name__} has ended:\n{self.said()}"

        wait_until(true, why_not, limit_s)

    def step_s(self, after_ns: int) -> float:
        """Median seconds of a step since a moment."""
        recent = [{step: at for step, at in commits.items() if at > after_ns} for commits in self.commits().values()]
        return statistics.median(seconds for commits in recent for seconds in step_times(commits))

    def settled(self, workers: int, after_ns: int, steps: int) -> bool:
        """Whether so many processes, and they alone, have done so many steps since a moment."""
        recent = {pid: sum(at > after_ns for at in commits.values()) for pid, commits in self.commits().items()}
        alive = [pid for pid in recent if _is_alive(pid)]
        return len(alive) == workers and all(recent[pid] >= steps for pid in alive)


class Torchrun(Crew):
    """Agents that share a rendezvous."""

    def __init__(self, folder: Path, model: str, nodes: str = "1:2", device: str = "cpu") -> None:
        super().__init__(folder, model)
        self._nodes = nodes
        self._device = device
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._checkpoint = folder / f"torchrun-{model}.pt"

    def agent(self, workers: int) -> subprocess.Popen[bytes]:
        """Start an agent with so many workers."""
        options = [f"--nnodes={self._nodes}", f"--nproc-per-node={workers}", "--max-restarts=1000"]
        options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=bench"]
        options += [f"--rdzv-conf={RENDEZVOUS}", "--local-addr=127.0.0.1", "--monitor-interval=0.1"]
        script = [str(SCRIPTS / "train_ddp.py"), "--model", self.model, "--commits", str(self.logs)]
        script += ["--device", self._device]
        return self.launch(
            [sys.executable, "-m", "torch.distributed.run", *options, *script, "--checkpoint", str(self._checkpoint)],
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "LOGLEVEL": "INFO"},
        )

    def spare(self, workers: int) -> subprocess.Popen[bytes]:
        """Start an agent beyond the most nodes, and wait until it waits for a place."""
        number = len(self._running)
        agent = self.agent(workers)
        self.until(lambda: "Rendezvous'ing worker group" in self.log_of(number).read_text(errors="replace"))
        return agent

    def pause(self, at_ns: int) -> tuple[float, int]:
        """Seconds from the last commit of the old processes to the first of the new, and the steps done again."""
        old: Commits = {}
        new: Commits = {}
        for commits in self.commits().values():
            first = min(commits.values(), default=0)
            kept = new if first > at_ns else old
            for step, at in commits.items():
                kept[step] = min(at, kept.get(step, at)) if kept is new else max(at, kept.get(step, at))
        return (min(new.values()) - max(old.values())) * _NS, max(old) + 1 - min(new)


class Torchft(Crew):
    """Replica groups of one process each, and a lighthouse."""

    def __init__(self, folder: Path, model: str, python: str) -> None:
        super().__init__(folder, model)
        self._python = python
        self._lighthouse = f"127.0.0.1:{free_port()}"
        options = ["--min_replicas", "1", "--bind", self._lighthouse, "--join_timeout_ms", "1000"]
        options += ["--heartbeat_timeout_ms", str(HEARTBEAT_TIMEOUT_MS), "--quorum_tick_ms", "50"]
        self.launch([str(Path(python).with_name("torchft_lighthouse")), *options], {})

    def replica(self) -> subprocess.Popen[bytes]:
        """Start one more."""
        script = [str(SCRIPTS / "train_torchft.py"), "--model", self.model, "--commits", str(self.logs)]
        return self.launch([self._python, *script], {"TORCHFT_LIGHTHOUSE": f"http://{self._lighthouse}"})

    def pause(self, at_ns: int, survivors: list[int]) -> float:
        """The longest wait of a survivor around a newcomer's first two steps, or after somebody was lost."""
        logs = self.commits()
        firsts = [
            min(commits) for pid, commits in logs.items() if pid not in survivors and min(commits.values()) > at_ns
        ]
        found = []
        for pid in survivors:
            times = {step: at for step, at in logs[pid].items() if at > at_ns}
            steps = [step for first in firsts for step in (first, first + 1)] or sorted(times)[:3]
            found += [
                (logs[pid][step] - logs[pid][step - 1]) * _NS
                for step in steps
                if step in logs[pid] and step - 1 in logs[pid]
            ]
        return max(found, default=float("nan"))


def torchft_python(wanted: str) -> tuple[str, str]:
    """The interpreter that has torchft, or why there is none."""
    python = wanted or sys.executable
    if not wanted and importlib.util.find_spec("torchft") is None:
        return "", "not installed: pip install torchft, or name another environment's python with --torchft-python"
    if not Path(python).with_name("torchft_lighthouse").exists():
        return "", f"no torchft_lighthouse beside {python}: pip install torchft there"
    return python, ""


def kill(pid: int) -> None:
    """As a power cut would."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
