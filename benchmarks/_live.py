"""Whole jobs, started as a person starts them, and what their commit logs say about the time between two steps."""

import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from _common import PYTHON_PATH

from melodeon.coord.client import JobHandle, connect
from melodeon.core.errors import NotFound

SCRIPTS = Path(__file__).parent / "live"
LIMIT_S = 240.0
_NS = 1e-9

Commits = dict[int, int]
"""Step -> nanoseconds."""


def scratch() -> Path:
    """A folder of our own in memory, where the machine has such a place: disks are not what is measured.

    From here on SIGTERM, too, leaves through the `finally` clauses that end jobs and remove the folder.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="melodeon-bench-", dir=memory if os.access(memory, os.W_OK) else None))


def thread_env() -> dict[str, str]:
    """One thread a process, and the loopback alone, for every contender."""
    ours = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PYTHON_PATH}
    return {**os.environ, **ours}


def load() -> list[float]:
    """The machine's load averages: how much others may have disturbed."""
    return [round(value, 2) for value in os.getloadavg()]


def wait_until(true: Callable[[], bool], alive: Callable[[], str], limit_s: float = LIMIT_S) -> None:
    """Look until something holds; `alive` says why it never will, if so."""
    deadline = time.monotonic() + limit_s
    while not true():
        if why := alive():
            raise SystemExit(why)
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing came of it within {limit_s:.0f} s")
        time.sleep(0.02)


# -- commit logs -------------------------------------------------------------------------------------------------------


def read_commits(folder: Path) -> dict[str, Commits]:
    """Every process's commits, by the name of its log."""
    found = {}
    for path in sorted(folder.iterdir()):
        body, _, _ = path.read_text().rpartition("\n")  # the last line may be half written
        found[path.name] = {int(step): int(at) for step, at in (line.split() for line in body.splitlines())}
    return found


def recommitted(folder: Path) -> int:
    """Steps that some process has committed more than once."""
    files = [[line.split()[0] for line in path.read_text().splitlines()] for path in folder.iterdir()]
    return sum(len(steps) - len(set(steps)) for steps in files)


def newest_step(folder: Path) -> int:
    """The highest step that anybody has committed."""
    return max((max(commits, default=0) for commits in read_commits(folder).values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Two steps with different workers."""

    step: int
    """The last one before."""
    before: frozenset[str]
    after: frozenset[str]
    pause_s: float
    """From the last commit before to the first after, on the survivor that waited longest."""
    step_before_s: float
    """Median step of the survivors before; the pause has one step in it, too."""
    step_after_s: float


def boundaries(logs: Mapping[str, Commits], around: int = 20) -> list[Boundary]:
    """Every change of membership that at least one worker has lived through, in order."""
    found = []
    members = _members(logs)
    for step in sorted(members)[:-1]:
        before, after = members[step], members.get(step + 1, frozenset())
        stayed = before & after
        if before == after or not stayed:
            continue
        found.append(
            Boundary(
                step=step,
                before=before,
                after=after,
                pause_s=max((logs[name][step + 1] - logs[name][step]) * _NS for name in stayed),
                step_before_s=_median_step(logs, members, range(step - around, step)),
                step_after_s=_median_step(logs, members, range(step + 1, step + 1 + around)),
            )
        )
    return found


def _members(logs: Mapping[str, Commits]) -> dict[int, frozenset[str]]:
    steps: dict[int, set[str]] = {}
    for name, commits in logs.items():
        for step in commits:
            steps.setdefault(step, set()).add(name)
    return {step: frozenset(names) for step, names in steps.items()}


def _median_step(logs: Mapping[str, Commits], members: Mapping[int, frozenset[str]], steps: Iterable[int]) -> float:
    """Over those of these steps that had the same workers as the one after them."""
    gaps = [
        (logs[name][step + 1] - logs[name][step]) * _NS
        for step in steps
        if step in members and members[step] == members.get(step + 1)
        for name in members[step]
    ]
    return statistics.median(gaps) if gaps else float("nan")


def step_times(commits: Commits) -> list[float]:
    """Seconds from each commit to the next."""
    times = [commits[step] for step in sorted(commits)]
    return [(later - earlier) * _NS for earlier, later in pairwise(times)]


def pause_at(commits: Commits, at_ns: int, gaps: int = 2) -> float:
    """The longest of the first gaps that end after a moment: a step already agreed on may still come in time."""
    times = sorted(commits.values())
    ends = [index for index, time_ns in enumerate(times) if time_ns > at_ns and index > 0][:gaps]
    return max(((times[index] - times[index - 1]) * _NS for index in ends), default=float("nan"))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


# -- our jobs ----------------------------------------------------------------------------------------------------------


class Job:
    """One `melodeon run` of benchmarks/live/train.py."""

    def __init__(
        self, folder: Path, *, run: Sequence[str], script: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.name = f"bench-{secrets.token_hex(3)}"
        self.run_dir = folder / self.name
        self.logs = folder / f"{self.name}-commits"
        self.logs.mkdir(parents=True)
        self._said = (folder / f"{self.name}.log").open("w+b")
        os.environ["XDG_RUNTIME_DIR"] = str(folder)  # where a handle finds the job
        options = ["--runs-root", str(folder), "--name", self.name, "--threads", "1", "--quiet"]
        options += [] if "--static" in run else ["--straggler", "0"]  # without agents nobody looks for them
        options += run
        train = [str(SCRIPTS / "train.py"), "--commits", str(self.logs), *script]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "melodeon", "run", *options, *train],
            env={**thread_env(), **(env or {})},
            stdout=self._said,
            stderr=self._said,
        )
        self._handle: JobHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._said.close()

    @property
    def handle(self) -> JobHandle:
        """The job, once it can be spoken to."""
        self.until(self._find)
        assert self._handle is not None
        return self._handle

    def _find(self) -> bool:
        if self._handle is None:
            with suppress(NotFound):
                self._handle = connect(self.name)
        return self._handle is not None

    def until(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait for something of this job."""
        wait_until(true, self._why_not, limit_s)

    def _why_not(self) -> str:
        if self.process.poll() is None:
            return ""
        return f"the job ended with {self.process.returncode}:\n{self.said()}"

    def said(self) -> str:
        """What it printed last."""
        return Path(self._said.name).read_text(errors="replace")[-3000:]

    def steps(self, count: int) -> None:
        """Until so many more steps are committed."""
        goal = newest_step(self.logs) + count
        self.until(lambda: newest_step(self.logs) >= goal)

    def members(self) -> dict[int, int]:
        """Worker -> process, of those that train."""
        workers: list[dict[str, Any]] = self.handle.status()["workers"]
        return {row["worker"]: row["pid"] for row in workers if row["phase"] == "member" and not row["released"]}

    def has(self, workers: int) -> bool:
        """Whether so many train, and nothing is on its way."""
        try:
            status = self.handle.status()
        except NotFound:
            return False  # it has ended, which others notice
        training = [row for row in status["workers"] if row["phase"] == "member" and not row["released"]]
        return len(training) == workers and len(status["workers"]) == workers

    def stop(self) -> None:
        """End it at a step's boundary."""
        self.handle.stop()
        wait_until(lambda: self.process.poll() is not None, lambda: "")

    def commits(self) -> dict[str, Commits]:
        """What has been committed, and when, by worker."""
        return read_commits(self.logs)

    def receipt(self) -> dict[int, str]:
        """Digest of the whole state by step."""
        rows = [json.loads(line) for line in (self.run_dir / "receipt.jsonl").read_text().splitlines()[1:]]
        return {row["step"]: row["digest"] for row in rows}


def clean(folder: Path) -> None:
    """Give the memory back."""
    shutil.rmtree(folder, ignore_errors=True)
