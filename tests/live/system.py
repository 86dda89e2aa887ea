"""A whole job, as a person would have it: launcher, agents, nursery, workers; and hands to hurt it with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from melodeon.coord.client import JobHandle, connect
from melodeon.coord.marks import read_mark
from melodeon.core.errors import NotFound

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train.py")
LIMIT_S = 60.0
QUICK = {"ttl_s": 1.0, "silence_s": 1.5, "resend_s": 0.2}
"""Patience for tests: a loaded machine still keeps these."""


class System:
    """One running job."""

    def __init__(
        self,
        folder: Path,
        name: str = "job",
        *args: str,
        env: Mapping[str, str] | None = None,
        script: Path = SCRIPT,
        enter: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`enter` stands before the launcher's command line, to have it run elsewhere."""
        self.run_dir = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / f"{name}.log").open("w+b")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        # On the CPU also where there is a GPU: sixty processes that start CUDA at once outlast these jobs' patience.
        here = {"XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
        env = {**os.environ, **here, **(env or {})}
        self._registry = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(folder)  # where a handle finds the job
        launch = [sys.executable, "-m", "tests.live.launch", str(folder), name, json.dumps({**QUICK, **options})]
        self.process = subprocess.Popen(
            [*enter, *launch, str(script), *args],
            env=env,
            cwd=ROOT,
            stdout=self._log,
            stderr=self._log,
        )
        self._name = name
        self._handle: JobHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        if self._registry is None:
            os.environ.pop("XDG_RUNTIME_DIR", None)
        else:
            os.environ["XDG_RUNTIME_DIR"] = self._registry

    @property
    def handle(self) -> JobHandle:
        """The job, once it can be spoken to."""
        if self._handle is None:
            self.until(self._find)
        assert self._handle is not None
        return self._handle

    def _find(self) -> bool:
        with suppress(NotFound):
            self._handle = connect(self._name)
        return self._handle is not None

    def until(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Look again and again until something holds."""
        deadline = time.monotonic() + limit_s
        while not true():
            ended = self.process.poll()
            assert ended is None or true(), f"the job has ended with {ended}\n{self.log()}"
            assert time.monotonic() < deadline, f"not within {limit_s} s\n{self.log()}"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)

    def status(self) -> dict[str, Any]:
        return self.handle.status()

    def reach(self, step: int) -> None:
        """Until this step is committed."""
        self.until(lambda: self.last_step() >= step)

    def last_step(self) -> int:
        """The newest step in the receipt."""
        path = self.run_dir / "receipt.jsonl"
        if not path.exists():
            return 0
        lines = path.read_bytes().splitlines()
        return len(lines) - 1

    def members(self) -> list[dict[str, Any]]:
        """The workers that train now."""
        return [worker for worker in self.status()["workers"] if worker["phase"] == "member" and not worker["released"]]

    def pids(self) -> dict[int, int]:
        return {worker["worker"]: worker["pid"] for worker in self.members()}

    def agent_pid(self, agent: str = "node0") -> int | None:
        """The process of an agent."""
        wanted = str(self.run_dir / "agents" / agent / "agent.json").encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if wanted in path.read_bytes().split(b"\0"):
                    return int(path.parent.name)
        return None

    def nursery_pid(self, agent: str = "node0") -> int | None:
        """The process that an agent's workers are forked from."""
        return read_mark(self.run_dir / "agents" / agent / "nursery.pid")

    def hurt(self, pid: int, number: int = signal.SIGKILL) -> bool:
        """Send a signal; False if the process had ended by itself."""
        assert pid > 0, f"{pid} would be a whole group of processes"
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def hurt_when_there(self, find: Callable[[], int | None]) -> int:
        """Kill the process that `find` finds, as soon as there is one."""
        found: list[int] = []

        def look() -> bool:
            pid = find()
            if pid is not None and self.hurt(pid):
                found.append(pid)
            return bool(found)

        self.until(look)
        return found[0]

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Wait for the job's end."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended within {limit_s} s\n{self.log()}") from None

    def well(self, limit_s: float = LIMIT_S) -> Self:
        code = self.end(limit_s)
        assert code == 0, f"the job ended with {code}\n{self.log()}"
        return self

    def finished(self) -> Self:
        """Wait for its end, now that nothing more is done to it: from the next epoch on it need not take its time."""
        (self.run_dir / "hurry").touch()
        return self.well()

    def receipt(self, *, after: int = 0) -> dict[int, str]:
        """Digest of the whole state by step, of a run that went on from step `after`."""
        lines = (self.run_dir / "receipt.jsonl").read_text().splitlines()[1:]
        rows = [json.loads(line) for line in lines]
        steps = [row["step"] for row in rows]
        assert steps == list(range(after + 1, after + len(rows) + 1)), "every step once, in order"
        return {row["step"]: row["digest"] for row in rows}

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        path = self.run_dir / "events.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if kind is None or row["kind"] == kind]

    def log(self) -> str:
        """Everything that was said, for a failure."""
        self._log.flush()
        said = [Path(self._log.name).read_text(errors="replace")]
        for path in sorted(self.run_dir.glob("**/*.log")):
            said.append(f"-- {path.relative_to(self.run_dir)}\n{path.read_text(errors='replace')[-3000:]}")
        said += ["-- events", *(json.dumps(row) for row in self.events() if row["kind"] != "step")]
        return "\n".join(said)[-12000:]


def undisturbed(folder: Path, *args: str, limit_s: float = LIMIT_S) -> dict[int, str]:
    """The receipt of the same script on one worker, without agents."""
    with System(folder, "undisturbed", *args, elastic=False) as system:
        return system.well(limit_s).receipt()
