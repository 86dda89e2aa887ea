"""A real elastic job of scripted workers in this test's process, to be disturbed from outside."""

import contextlib
import json
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from melodeon.backends.elastic import Elastic, run_elastic
from melodeon.backends.local import Event
from melodeon.backends.outcome import Outcome
from melodeon.coord import registry
from melodeon.coord.client import JobHandle
from melodeon.coord.marks import read_mark, read_marks, started
from melodeon.coord.master_state import JobConfig
from melodeon.core.errors import NotFound
from melodeon.core.launch import Launch

SCRIPT = str(Path(__file__).with_name("scripted.py"))
PRELOAD = ("json", "msgspec", "melodeon.coord.wire")
"""What scripted workers need: no torch, so that tests are quick."""


class Running:
    """`with Running(folder, workers=3) as job:` ends with nothing left of it."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        steps: int = 100_000,
        agents: int = 1,
        elastic: dict[str, Any] | None = None,
        **job: Any,
    ) -> None:
        self.folder = folder / "run"
        self.folder.mkdir()
        self.events: list[Event] = []
        self._news = threading.Condition()
        self.output = b""
        self.outcome: Outcome | None = None
        self._config = Elastic(
            job=JobConfig(job=f"test-{os.getpid()}-{time.monotonic_ns()}", agents=agents, **job),
            agents=agents,
            slots=8,
            **{"ttl_s": 1.0, "preload": PRELOAD, **(elastic or {})},
        )
        self._command = [SCRIPT, str(steps), *args]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Running":
        self._thread.start()
        entry = eventually(lambda: next((e for e in registry.entries() if e.id == self._config.job.job), None))
        self.handle = JobHandle(entry)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread.is_alive():
            for pid in self.all_processes():
                resume(pid)
            try:
                with contextlib.suppress(NotFound):  # the test has ended it, this moment
                    self.handle.ask("stop", timeout_s=20)
            finally:
                self.end()
        if kind is not None:
            self.explain()

    def _run(self) -> None:
        self.outcome = run_elastic(
            self._command,
            Launch(),
            self.folder,
            self._config,
            on_event=self._see,
            on_output=self._hear,
        )

    def _see(self, event: Event) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def _hear(self, _name: str, data: bytes) -> None:
        self.output += data

    def end(self, within_s: float = 60.0) -> Outcome:
        """Wait for the job's end."""
        self._thread.join(within_s)
        assert self.outcome is not None, "the job has not ended"
        return self.outcome

    def explain(self) -> None:
        for path in [*self.folder.glob("agents/*/*.log"), self.folder / "events.jsonl", *self.folder.glob("*.log")]:
            print(f"--- {path.name}\n{path.read_text()[-3000:]}")

    # -- who is there

    def agent(self, index: int = 0) -> int:
        """The process of an agent."""
        want = f"{self.folder}/agents/node{index}/agent.json"
        return eventually(lambda: next((p for p, args in _processes().items() if want in args), 0))

    def nursery(self, index: int = 0) -> int:
        return eventually(lambda: read_mark(self.folder / "agents" / f"node{index}" / "nursery.pid") or 0)

    def workers(self) -> dict[int, int]:
        """Worker -> process, of those that run."""
        found: dict[int, int] = {}
        for folder in self.folder.glob("agents/*"):
            found |= read_marks(folder)
        return found

    def all_processes(self) -> list[int]:
        """Everything of this job that runs."""
        agents = [pid for pid, args in _processes().items() if str(self.folder) in args]
        return [*agents, *self.workers().values()]

    # -- what has happened

    def kinds(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event["kind"] == kind]

    def wait_for(self, kind: str, **values: object) -> Event:
        """The event with these values, when it has come."""
        return self._await(kind, lambda event: all(event.get(key) == value for key, value in values.items()))

    def wait_for_view(self, *workers: int) -> Event:
        """The view of these workers, whatever their order, when all have entered it."""
        return self._await("view", lambda event: sorted(cast("list[int]", event["workers"])) == sorted(workers))

    def wait_for_another_master(self) -> Event:
        """The second one, when it is elected."""
        return self._await("master", lambda event: event is not self.kinds("master")[0])

    def _await(self, kind: str, is_it: Callable[[Event], bool], within_s: float = 30.0) -> Event:
        with self._news:
            found = self._news.wait_for(lambda: next(filter(is_it, self.kinds(kind)), None), within_s)
        assert found is not None, f"no such {kind} event has come within {within_s:.0f} s"
        return found

    def log(self, worker: int) -> str:
        return "".join((self.folder / f"worker-{worker}.{end}").read_text() for end in ("log", "err"))

    def noticed(self, worker: int, generation: int) -> float:
        """When that worker was told of that view, by the monotonic clock."""
        pattern = re.compile(rf"^notice \d+ {generation} (\S+)$", re.MULTILINE)
        return float(eventually(lambda: pattern.search(self.log(worker))).group(1))

    def progress(self) -> int:
        """The newest step of any worker."""
        return int(self.handle.status()["step"])


def eventually(look: Callable[[], Any], within_s: float = 30.0) -> Any:
    """What `look` finds, once it finds something; for what shows in files and tables only."""
    until = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < until, "it has not happened"
        select.select([], [], [], 0.01)
    return found


def gone(pid: int, within_s: float = 20.0) -> bool:
    """Wait for the end of somebody else's child."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ended], [], [], within_s)[0]) or started(pid) is None
    finally:
        os.close(ended)


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _processes() -> dict[int, list[str]]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            args = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if started(int(path.parent.name)) is not None:
            found[int(path.parent.name)] = args
    return found


def events_file(folder: Path) -> list[Event]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
