"""Operators recorded or scanned during a run, where the launcher asked for it."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from melodeon.core.launch import Launch
from melodeon.core.opdiff import COMMIT_RANK
from melodeon.runtime.oprecord import OpRecorder
from melodeon.runtime.opscan import OpScan
from melodeon.runtime.state import bare


class Watch:
    """A recorder or a scan, told whose turn it is."""

    def __init__(self, recorder: OpRecorder | None, scan: OpScan | None) -> None:
        self._recorder = recorder
        self._scan = scan

    @classmethod
    def make(cls, launch: Launch, folder: Path, models: Sequence[torch.nn.Module]) -> "Watch | None":
        """What the launcher asked for, or None."""
        modules = {"" if len(models) == 1 else str(i): bare(model) for i, model in enumerate(models)}
        if launch.scan:
            return cls(None, OpScan(modules))
        if launch.record_ops:
            return cls(OpRecorder(folder / "ops" / f"worker-{launch.worker}.jsonl", modules), None)
        return None

    def enter(self, step: int, rank: int) -> None:
        """A virtual worker's turn begins."""
        if self._recorder is not None:
            self._recorder.enter(step, rank)
        if self._scan is not None:
            self._scan.enter()

    def commit(self, step: int) -> None:
        """The update begins."""
        if self._recorder is not None:
            self._recorder.enter(step, COMMIT_RANK)
        if self._scan is not None:
            self._scan.enter(commit=True)

    def leave(self) -> None:
        """The turn or the update is over."""
        if self._recorder is not None:
            self._recorder.leave()
        if self._scan is not None:
            self._scan.leave()

    def write_scan(self, path: Path) -> None:
        """Store what the scan saw."""
        if self._scan is not None:
            path.write_text(json.dumps(self._scan.report()))

    def close(self) -> None:
        """End the file."""
        if self._recorder is not None:
            self._recorder.close()
