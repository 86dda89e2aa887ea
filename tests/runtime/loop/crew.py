"""Workers of a job as forks of one process that has torch loaded: a run of three workers takes well under a second.

The forks are real worker processes with their own launch value, log and exit code. What they run is a function of a
case module, called with keyword options; it joins the job as a script would. The launcher has tests of its own.
"""

import atexit
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from melodeon.core.launch import Launch

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.runtime.loop.preload"])

LIMIT_S = 60.0
GRACE_S = 20.0
"""How long the others may take after the first failure; who is still there then is killed, as its exit code says."""

Case = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run left behind."""

    folder: Path
    codes: tuple[int | None, ...]

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def states(self) -> dict[int, str]:
        """Digest of the whole state after every step."""
        return {row["step"]: row["digest"] for row in self.lines("states.jsonl")}

    @property
    def leaves(self) -> dict[int, dict[str, str]]:
        """Digest of every value of the state after every step."""
        return {row["step"]: row["leaves"] for row in self.lines("states.jsonl")}

    @property
    def said(self) -> list[Any]:
        """What the case told about itself on worker 0, see `tell`."""
        return [row["value"] for row in self.lines("said.jsonl")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = [row for worker in range(len(self.codes)) for row in self.lines(f"events-{worker}.jsonl")]
        return [row for row in rows if row["kind"] == kind]

    @property
    def errors(self) -> list[str]:
        """The sentences of the workers that failed for a reason of their own."""
        return [row["text"] for row in self.events("error") if row["type"] != "WorkerLost"]

    @property
    def notes(self) -> list[str]:
        return [row["text"] for row in self.events("note")]

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

    def well(self) -> "Ended":
        """Fail with the logs unless every worker ended well."""
        assert all(code == 0 for code in self.codes), f"exit codes {self.codes}\n{self.log()}"
        return self


def run(
    case: Case,
    counts: Sequence[int],
    folder: Path,
    *,
    launch: Launch | None = None,
    limit_s: float = LIMIT_S,
    **options: Any,
) -> Ended:
    """Run `case(**options)` on `len(counts)` workers to the end of all of them."""
    folder.mkdir(parents=True)
    base = replace(
        launch or Launch(record_states=True),
        num_workers=len(counts),
        counts=tuple(counts),
        run_dir=str(folder),
        rendezvous=str(folder / "rendezvous") if len(counts) > 1 else None,
    )
    name = f"{case.__module__}:{case.__qualname__}"
    workers = [
        CONTEXT.Process(target=_work, args=(name, asdict(replace(base, worker=worker)), options))
        for worker in range(len(counts))
    ]
    try:
        for worker in workers:
            worker.start()
        _watch(workers, limit_s)
    finally:
        for worker in workers:
            if worker.pid is not None and worker.exitcode is None:
                worker.kill()
                worker.join()
    return Ended(folder, tuple(worker.exitcode for worker in workers))


def tell(value: Any) -> None:
    """Leave a value for the test, from worker 0 of a case."""
    launch = Launch.from_env(os.environ)
    assert launch is not None
    if launch.worker == 0:
        with (Path(str(launch.run_dir)) / "said.jsonl").open("a") as file:
            file.write(json.dumps({"value": value}) + "\n")


def _watch(workers: Sequence[Any], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    failed = False
    running = list(workers)
    while running and time.monotonic() < deadline:
        wait([worker.sentinel for worker in running], timeout=deadline - time.monotonic())
        for worker in running:
            worker.join(0)
        running = [worker for worker in running if worker.exitcode is None]
        if not failed and any(worker.exitcode for worker in workers):
            failed, deadline = True, min(deadline, time.monotonic() + GRACE_S)


def _work(case: str, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """One worker, from the fork to its end as a script."""
    folder, worker = Path(fields["run_dir"]), fields["worker"]
    log = os.open(folder / f"worker-{worker}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    fields["event_fd"] = os.open(folder / f"events-{worker}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.environ.update(Launch(**fields).to_env())
    module, _, function = case.partition(":")
    try:
        getattr(importlib.import_module(module), function)(**options)
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - whatever ends a script goes through its hook
        sys.excepthook(*sys.exc_info())
        atexit._run_exitfuncs()
        os._exit(1)
    atexit._run_exitfuncs()
