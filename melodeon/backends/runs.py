"""Runs as folders: `<runs_root>/<id>/run.json` says what was started and how it ended, from start to end.

`perform` is the whole of one run on this machine: make the folder, start the workers, write down the outcome. Commands
differ only in the `Launch` they start from and in who listens.
"""

import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from melodeon.backends.local import Event, OnEvent, OnOutput, run_local
from melodeon.backends.outcome import STOPPED, Outcome
from melodeon.backends.stderr_end import explained
from melodeon.coord.marks import started
from melodeon.core.assignment import Assignment
from melodeon.core.errors import MelodeonError, UsageError
from melodeon.core.launch import Launch

if TYPE_CHECKING:
    from melodeon.backends.elastic import Elastic

_NAME = re.compile(r"[\w.][\w.-]*")
"""A dash at the beginning would make it an option of every command that is given it."""

# What an elastic job needs is imported on use: this module is read by every `melodeon --help`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run."""

    script: str
    args: Sequence[str] = ()
    launch: Launch = field(default_factory=Launch)
    """What every worker is told; `perform` fills in each one's place, the folder and the rendezvous."""
    name: str | None = None
    """The run's id; None makes one from the time."""
    command: Sequence[str] = ()
    """What the person typed, for the record."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to every worker's environment, over what the level sets."""
    elastic: "Elastic | None" = None
    """How to run it as an elastic job; None: on a fixed number of workers, without agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run, ended."""

    run_dir: Path
    outcome: Outcome
    seconds: float
    steps: int | None
    """The last committed step that was heard of."""
    digest: str | None
    """The digest of the final state, where the run came to its end."""
    shown: int = 0
    """The worker whose output was passed on last: the first of the newest view, worker 0 where there are no views."""


def perform(request: Request, *, on_event: OnEvent | None = None, on_output: OnOutput | None = None) -> Report:
    """Run a request on this machine and write its `run.json`."""
    launch = request.launch
    if launch.counts is not None:
        launch = replace(launch, num_workers=Assignment(launch.counts).num_workers)
    if launch.num_workers < 1:
        raise UsageError(f"{launch.num_workers} workers cannot run anything: choose at least 1")
    run_dir = new_run_dir(Path(launch.runs_root), request.name)
    record = _begun(request, launch, run_dir)
    write_record(run_dir, record)
    heard = Heard()

    def listen(event: Event) -> None:
        heard.hear(event)
        if on_event is not None:
            on_event(event)

    started = time.monotonic()
    outcome = Outcome(exit_code=1, reason="the launcher failed")
    try:
        outcome = explained(_run(request, launch, run_dir, listen, on_output), run_dir)
    except MelodeonError as error:
        outcome = Outcome(exit_code=error.exit_code, reason=str(error))
        raise
    except KeyboardInterrupt:  # before anything was there that waits for signals
        outcome = STOPPED
        raise
    finally:
        seconds = time.monotonic() - started
        record |= heard.ending(outcome, seconds)
        if request.elastic is None:
            record["last_workers"] = launch.num_workers
        write_record(run_dir, record)
    return _report(run_dir, outcome, seconds, heard.last)


class Heard:
    """What a run's events say for its record."""

    def __init__(self) -> None:
        self.last: Event = {}
        self._joined: Event = {}

    def hear(self, event: Event) -> None:
        """Take the next event."""
        if event.get("kind") == "view":  # it is told when its pauses are known, some steps after it began
            self.last["workers"] = event.get("workers")
        else:
            self.last.update({key: event[key] for key in ("step", "digest", "reached") if key in event})
        if event.get("kind") == "joined":
            self._joined = {key: event[key] for key in ("assignment", "virtual_workers", "order") if key in event}

    def ending(self, outcome: Outcome, seconds: float) -> Event:
        """What the end adds to the record."""
        step, digest, workers = (self.last.get(key) for key in ("step", "digest", "workers"))
        told = {"status": outcome.status, "exit_code": outcome.exit_code, "reason": outcome.reason}
        trained = {"seconds": round(seconds, 3), "steps": step, "digest": digest or None}
        return {**self._joined, **told, **trained, "last_workers": size_of(workers)}


def _begun(request: Request, launch: Launch, run_dir: Path) -> dict[str, object]:
    """The record of a run that has just been started."""
    is_shared = request.elastic is not None and bool(request.elastic.listen)
    return {
        "id": run_dir.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": list(request.command) or [sys.executable, request.script, *request.args],
        "script": request.script,
        "args": list(request.args),
        "num_workers": launch.num_workers,
        "assignment": str(Assignment(launch.counts)) if launch.counts else None,
        "determinism": launch.determinism,
        "engine": launch.engine,
        "elastic": request.elastic is not None,
        **({"host": socket.gethostname()} if is_shared else {}),  # whose processes `pid` counts
        "pid": os.getpid(),
        "pid_started": started(os.getpid()),
        "status": "running",
        "exit_code": None,
    }


def _run(request: Request, launch: Launch, run_dir: Path, on_event: OnEvent, on_output: OnOutput | None) -> Outcome:
    command = [request.script, *request.args]
    if request.elastic is None:
        launches = launches_for(launch, run_dir)
        return run_local(command, launches, run_dir, env=request.env, on_event=on_event, on_output=on_output)
    import msgspec

    from melodeon.backends.elastic import run_elastic

    elastic = replace(request.elastic, job=msgspec.structs.replace(request.elastic.job, job=run_dir.name))
    absolute = run_dir.resolve()
    told = replace(launch, elastic=True, run_dir=str(absolute), runs_root=str(absolute.parent))
    return run_elastic(command, told, run_dir, elastic, env=request.env, on_event=on_event, on_output=on_output)


def launches_for(launch: Launch, run_dir: Path) -> list[Launch]:
    """Each worker's launch. Paths are absolute, because a script may change its folder."""
    absolute = run_dir.resolve()
    shared = replace(
        launch,
        run_dir=str(absolute),
        runs_root=str(absolute.parent),
        rendezvous=str(absolute / f"rendezvous-{launch.generation}") if launch.num_workers > 1 else None,
    )
    return [replace(shared, worker=worker) for worker in range(launch.num_workers)]


def new_run_dir(root: Path, name: str | None = None) -> Path:
    """Make a run's folder; ids made from the time sort by it."""
    if name is not None:
        _require_name(name)
    run_id = name or f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"  # noqa: DTZ005 - read by people here
    run_dir = root / run_id
    try:
        run_dir.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"run {str(run_dir)!r} exists already: choose another --name, or remove it") from None
    except OSError as error:
        raise UsageError(
            f"run folder {str(run_dir)!r} cannot be made ({error.strerror}): choose another --runs-root"
        ) from error
    return run_dir


def _require_name(name: str) -> None:
    from melodeon.coord.registry import NEWEST

    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(
            f"run name {name!r} is not a plain folder name: use letters, digits, dots, dashes and "
            "underscores, and no dash at the beginning"
        )
    if name == NEWEST:
        raise UsageError(f"run name {name!r} means the newest job wherever a job is named: choose another --name")


def write_record(run_dir: Path, record: Mapping[str, object]) -> None:
    """Write `run.json`; a reader sees the old one or the new one, never half of it."""
    # Not by the process's number: machines that see one folder may have the same.
    temporary = run_dir / f".run.json.{secrets.token_hex(4)}"
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(run_dir / "run.json")


def size_of(workers: object) -> int | None:
    """How many workers a view's event names; None: there was no view."""
    return len(workers) if isinstance(workers, list) else None


def _report(run_dir: Path, outcome: Outcome, seconds: float, last: Event) -> Report:
    step, digest, workers = last.get("step"), last.get("digest"), last.get("workers")
    return Report(
        run_dir=run_dir,
        outcome=outcome,
        seconds=seconds,
        steps=step if isinstance(step, int) else None,
        digest=digest if isinstance(digest, str) and digest else None,
        shown=int(workers[0]) if isinstance(workers, list) and workers else 0,
    )
