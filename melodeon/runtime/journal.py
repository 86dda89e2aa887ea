"""What a run leaves behind: its folder of JSON lines, and the events that the launcher shows.

Only worker 0 writes the run's files; every worker may send events. Writing never changes the result and a full disk
never stops the training unless the person asked for the file.
"""

import json
import os
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from melodeon.core.definition import Definition
from melodeon.core.launch import Launch
from melodeon.core.receipt import Receipt, header_line, next_entry
from melodeon.runtime.digest import StateDigest

_SHOW_EVERY_S = 0.1


class Journal:
    """The run's folder, its receipt and its events."""

    def __init__(self, launch: Launch) -> None:
        self._main = launch.worker == 0
        self._worker = launch.worker
        self._record_states = launch.record_states
        self._event_fd = launch.event_fd
        self._launch = launch
        self._files: dict[str, IO[str]] = {}
        self._receipt: Receipt | None = None
        self._shown_at = 0.0

    @cached_property
    def folder(self) -> Path:
        """The run's folder; without a launcher, made when it is first asked for: not by a script that cannot start."""
        launch = self._launch
        return Path(launch.run_dir) if launch.run_dir else _new_folder(Path(launch.runs_root), launch)

    def event(self, kind: str, **fields: object) -> None:
        """Tell the launcher, in one line."""
        if self._event_fd is not None:
            line = json.dumps({"kind": kind, **fields}, default=str) + "\n"
            try:
                os.write(self._event_fd, line.encode())
            except OSError:
                self._event_fd = None

    def note(self, text: str) -> None:
        """One sentence for the person, said by worker 0: through the launcher, or on stderr without one."""
        if not self._main:
            return
        if self._event_fd is not None:
            self.event("note", text=text)
        else:
            os.write(2, f"melodeon: {text}\n".encode())

    def define(self, definition: Definition) -> None:
        """Record what defines the bits, before the first entry of the receipt."""
        if not self._main or self._receipt is not None:
            return
        (self.folder / "definition.json").write_text(json.dumps(dict(definition.values), indent=2) + "\n")
        self._receipt = Receipt(definition)
        self._write("receipt.jsonl", header_line(definition))

    def metrics(self, row: dict[str, Any]) -> None:
        """One step's means."""
        if self._main:
            self._write("metrics.jsonl", json.dumps(row) + "\n")

    def step(self, step: int, epoch: int, metrics: dict[str, Any]) -> None:
        """Show progress, not more often than a person can read."""
        now = time.monotonic()
        if self._main and now - self._shown_at >= _SHOW_EVERY_S:
            self._shown_at = now
            self.event("step", step=step, epoch=epoch, metrics=metrics)

    def digest(self, step: int, digest: StateDigest) -> None:
        """Chain a state's digest to the receipt."""
        if not self._main:
            return
        assert self._receipt is not None, "define() comes first"
        if not self._receipt.entries or self._receipt.entries[-1].step < step:
            entry = next_entry(self._receipt.chain, step, digest.root)
            self._receipt = Receipt(self._receipt.definition, (*self._receipt.entries, entry))
            self._write("receipt.jsonl", entry.line())
        if self._record_states:
            row = {"step": step, "digest": digest.root, "leaves": digest.leaves}
            self._write("states.jsonl", json.dumps(row) + "\n")

    def close(self, *, failed: bool = False) -> None:
        """Close the files; without a launcher, say in run.json how the run ended."""
        for file in self._files.values():
            file.close()
        self._files = {}
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


def _new_folder(root: Path, launch: Launch) -> Path:
    """A fresh run folder for a script that was started without a launcher."""
    created = datetime.now(UTC)
    folder = root / f"{created:%Y%m%d-%H%M%S}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"id": folder.name, "created": created.isoformat(), "num_workers": launch.num_workers, "status": "running"}
    (folder / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
    return folder
