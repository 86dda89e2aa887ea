"""What a run leaves behind: its folder of JSON lines, and the events that the launcher shows.

Only worker 0 writes the run's files; every worker may send events. Writing never changes the result and a full disk
never stops the training unless the person asked for the file.
"""

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from melodeon.coord.lastwords import write_last_words
from melodeon.coord.marks import started
from melodeon.core.definition import Definition
from melodeon.core.launch import Launch
from melodeon.core.receipt import chain_start, header_line, next_entry
from melodeon.core.statediff import state_line
from melodeon.runtime.digest import StateDigest
from melodeon.runtime.link import Link
from melodeon.runtime.records import Records

_SHOW_EVERY_S = 0.5
_RECENT_ROWS = 1000
_TAIL = 1 << 16
"""Bytes of a file's end that hold a whole line of means."""


class Journal:
    """The run's folder, its receipt and its events."""

    def __init__(self, launch: Launch) -> None:
        self._main = launch.worker == 0 and not launch.elastic
        self._worker = launch.worker
        self._link: Link | None = None
        self._stated = 0
        """The newest step in states.jsonl."""
        self._rows: deque[dict[str, Any]] = deque(maxlen=_RECENT_ROWS)
        """Newest means that another worker writes: it may be lost before it has."""
        self._written = 0
        """The newest step in metrics.jsonl, where this worker writes it."""
        self._record_states = launch.record_states
        self._event_fd = launch.event_fd
        self._launch = launch
        self._place = Path(launch.run_dir or launch.runs_root).absolute()
        """The run's folder, or where it will be made; absolute, because the script may change its directory."""
        self._files: dict[str, IO[str]] = {}
        self._definition: Definition | None = None
        self._receipted = -1
        """The newest step in the receipt."""
        self._chain = ""
        """What the next entry of the receipt is chained to; the entries themselves are in the file alone."""
        self._shown_at = 0.0

    @cached_property
    def folder(self) -> Path:
        """The run's folder; without a launcher, made when it is first asked for: not by a script that cannot start."""
        launch = self._launch
        return self._place if launch.run_dir else _new_folder(self._place, launch)

    def event(self, kind: str, **fields: object) -> None:
        """Tell the launcher, in one line."""
        if self._link is not None:
            self._link.say({"kind": kind, **fields})
        elif self._event_fd is not None:
            line = json.dumps({"kind": kind, **fields}, default=str) + "\n"
            try:
                os.write(self._event_fd, line.encode())
            except OSError:
                self._event_fd = None

    def note(self, text: str, *, main: bool = False, warning: bool = False) -> None:
        """One sentence for the person, said by the worker that writes, or that knows it will: `main`.

        It goes through the launcher, or to stderr without one. A `warning` is one that a cluster tells of, too.
        """
        if not (self._main or main):
            return
        if self._event_fd is not None or self._link is not None:
            self.event("note", text=text, **({"warning": True} if warning else {}))
        else:
            os.write(2, f"melodeon: {text}\n".encode())

    def define(self, definition: Definition) -> None:
        """Record what defines the bits, before the first entry of the receipt."""
        if self._definition is None:
            self._definition = definition
            if self._main:
                self._write_definition(definition)
            self._begin_receipt(definition, write=self._main)

    def _begin_receipt(self, definition: Definition, *, write: bool) -> None:
        self._receipted, self._chain = -1, chain_start(definition)
        self._receipts.start_at(0)
        self._receipts.add(header_line(definition), write=write)

    def _write_definition(self, definition: Definition) -> None:
        (self.folder / "definition.json").write_text(json.dumps(dict(definition.values), indent=2) + "\n")

    @cached_property
    def _receipts(self) -> Records:
        return Records(self.folder / "receipt.jsonl")

    @cached_property
    def _states(self) -> Records:
        return Records(self.folder / "states.jsonl")

    # -- elastic jobs: another worker may have to go on writing --------------------------------------------------------

    def connect(self, link: Link) -> None:
        """Send events through the agent."""
        self._link = link

    def fail(self, text: str, exit_code: int) -> None:
        """The script has ended by an error of its own: the whole job is told, whoever listens just now."""
        if self._link is not None:
            self._link.post(error=text, exit_code=exit_code)
            write_last_words(self.folder, self._link.status)
            self._link.flush()

    def carried(self) -> dict[str, Any]:
        """What a worker that joins must know to go on with the run's files, however long they are."""
        receipt = {"step": self._receipted, "chain": self._chain, **self._receipts.carried()}
        states = {"step": self._stated, **self._states.carried()} if self._record_states else None
        return {"receipt": receipt, "states": states}

    def adopt(self, carried: Mapping[str, Any]) -> None:
        """Go on from what another worker knows."""
        assert self._definition is not None, "define() comes first"
        receipt = carried["receipt"]
        self._receipted, self._chain = int(receipt["step"]), str(receipt["chain"])
        self._receipts.adopt(receipt)
        if self._record_states:
            self._stated = int(carried["states"]["step"])
            self._states.adopt(carried["states"])

    def rewind(self, step: int) -> dict[str, Any]:
        """The job begins at `step`, perhaps after all workers were lost: cut off what was written beyond it.

        Called by the worker that will write; the others adopt what it returns.
        """
        assert self._definition is not None, "define() comes first"
        self._begin_receipt(self._definition, write=False)
        for line in _until(self.folder / "receipt.jsonl", step)[1:]:
            row = json.loads(line)
            self._receipted, self._chain = row["step"], row["chain"]
            self._receipts.add(line.decode(), write=False)
        if self._record_states:
            states = _until(self.folder / "states.jsonl", step)
            self._stated = int(json.loads(states[-1])["step"]) if states else 0
            self._states.start_at(sum(len(line) for line in states))
            self._states.cut()
        self._receipts.cut()
        metrics = self.folder / "metrics.jsonl"
        if metrics.exists():
            os.truncate(metrics, sum(len(line) for line in _until(metrics, step)))
        return self.carried()

    def seat(self, *, main: bool) -> None:
        """Be the worker that writes, or not; a new writer adds what the one before it could not."""
        before, self._main = self._main, main
        if main and not before:
            assert self._definition is not None, "define() comes first"
            self._write_definition(self._definition)
            self._receipts.rewrite()
            if self._record_states:
                self._states.rewrite()
            self._take_over_metrics()

    def metrics(self, row: dict[str, Any]) -> None:
        """One step's means; they come again where an exchange was interrupted for some."""
        if not self._main:
            self._rows.append(row)
        elif row["step"] > self._written:
            self._written = row["step"]
            self._write("metrics.jsonl", json.dumps(row) + "\n")

    def _take_over_metrics(self) -> None:
        """Go on with the file of another writer, who may have been lost in the middle of a line."""
        path = self.folder / "metrics.jsonl"
        self._written = _cut_torn_line(path) if path.exists() else 0
        rows, self._rows = self._rows, deque(maxlen=_RECENT_ROWS)
        for row in rows:
            self.metrics(row)

    def step(self, step: int, epoch: int, metrics: dict[str, Any]) -> None:
        """Show progress, not more often than a person can read."""
        now = time.monotonic()
        if self._main and now - self._shown_at >= _SHOW_EVERY_S:
            self._shown_at = now
            self.event("step", step=step, epoch=epoch, metrics=metrics)

    def digest(self, step: int, digest: StateDigest) -> None:
        """Chain a state's digest to the receipt."""
        assert self._definition is not None, "define() comes first"
        if step > self._receipted:
            entry = next_entry(self._chain, step, digest.root)
            self._receipted, self._chain = step, entry.chain
            self._receipts.add(entry.line(), write=self._main)
        if self._record_states and step > self._stated:
            self._stated = step
            self._states.add(state_line(step, digest.root, digest.leaves), write=self._main)

    def close(self, *, failed: bool = False) -> None:
        """Close the files; without a launcher, say in run.json how the run ended."""
        for file in self._files.values():
            file.close()
        self._files = {}
        for records in (self.__dict__.get("_receipts"), self.__dict__.get("_states")):
            if records is not None:
                records.close()
        if self._launch.run_dir is None and "folder" in self.__dict__:
            record = self.folder / "run.json"
            facts = {**json.loads(record.read_text()), "status": "failed" if failed else "done"}
            record.write_text(json.dumps(facts, indent=2) + "\n")

    def _write(self, name: str, line: str) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self.folder / name).open("a", encoding="utf-8")
        file.write(line)
        file.flush()


def _until(path: Path, step: int) -> list[bytes]:
    """The whole lines of a file up to `step`, the header among them."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = body[: body.rfind(b"\n") + 1].splitlines(keepends=True)
    return [line for line in whole if int(json.loads(line).get("step", 0)) <= step]


def _cut_torn_line(path: Path) -> int:
    """The step of the last whole line of a file; what follows it is cut off."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - _TAIL))
        tail = file.read()
        end = tail.rfind(b"\n") + 1
        if end or not start:
            file.truncate(start + end)
    lines = tail[:end].splitlines()
    return int(json.loads(lines[-1])["step"]) if len(lines) > 1 or (lines and not start) else 0


def _new_folder(root: Path, launch: Launch) -> Path:
    """A fresh run folder for a script that was started without a launcher."""
    created = datetime.now(UTC)
    folder = root / f"{created:%Y%m%d-%H%M%S}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"id": folder.name, "created": created.isoformat(), "num_workers": launch.num_workers, "status": "running"}
    facts |= {"pid": os.getpid(), "pid_started": started(os.getpid())}
    (folder / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
    return folder
