"""Checkpoints of a run: a folder of files by step, of which the newest few stay.

A file appears under its name only when it is complete and on the disk: temporary file, write, fsync, rename, fsync of
the folder; only then do older ones go. So wherever a crash falls, the newest good one is the last or the one before.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from melodeon.core.definition import Definition
from melodeon.core.errors import CheckpointError, UsageError
from melodeon.runtime.checkpoint_file import SUFFIX, TEMPORARY_SUFFIX, Checkpoint, read_checkpoint, write_file
from melodeon.runtime.codec import JsonValue, flatten

__all__ = ["BackgroundWriter", "Checkpoint", "CheckpointFolder", "read_checkpoint", "shown"]

_NAME = re.compile(r"step-(\d{10,18})\.melodeon")


def shown(path: Path) -> Path:
    """A path as sentences have it: relative, where it lies below the current directory."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


class CheckpointFolder:
    """The checkpoints of one run, by step; the newest `keep` stay."""

    def __init__(self, path: str | Path, keep: int = 3) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise UsageError(f"keep={keep!r} must be a whole number of at least 1: the newest checkpoint always stays")
        self.path = Path(path)
        self.keep = keep

    def write(
        self, step: int, state: object, definition: Definition, meta: Mapping[str, JsonValue] | None = None
    ) -> Path:
        """Store `state` as the checkpoint of `step`; when this returns, it survives a crash of the machine."""
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
            raise UsageError(f"step={step!r} must be a whole number of at least 0")
        structure, tensors = flatten(state)
        fields: dict[str, JsonValue] = {
            "step": step,
            "definition": {**definition.values},
            "meta": {**(meta or {})},
            "structure": structure,
        }
        target = self.path / f"step-{step:010d}{SUFFIX}"
        try:
            self._make()
            self._clean()
            write_file(target, fields, tensors)
            _sync_folder(self.path)
            self._prune(step)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {shown(target)} cannot be written ({error.strerror or error}): "
                "make room or choose a folder that can be written to"
            ) from error
        return target

    def steps(self) -> list[int]:
        """The steps that have a file, rising; whether a file is good shows when it is read."""
        return [step for step, _ in self._files()]

    def read(self, path: str | Path) -> Checkpoint:
        """Read and check one file; whatever is wrong with it is a CheckpointError that names it."""
        return read_checkpoint(path)

    def newest_good(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and a sentence about each newer one that was refused."""
        refused: dict[Path, str] = {}
        # Listed anew each time: a running job may remove an old file while this looks at it.
        while found := [item for item in self._files() if item[1] not in refused]:
            step, path = found[-1]
            try:
                checkpoint = read_checkpoint(shown(path))
                if checkpoint.step == step:
                    return checkpoint, list(refused.values())
                refused[path] = f"checkpoint {shown(path)} is refused: it holds step {checkpoint.step}, rename it back"
            except CheckpointError as error:
                if os.path.lexists(path):
                    refused[path] = str(error)
        return None, list(refused.values())

    def _files(self) -> list[tuple[int, Path]]:
        try:
            names = [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {shown(self.path)} cannot be listed ({error.strerror}): give a folder that can "
                "be read"
            ) from error
        return sorted((int(match[1]), self.path / match[0]) for name in names if (match := _NAME.fullmatch(name)))

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"checkpoint folder {shown(self.path)} is a file: give the path of a folder")
        created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in created:
            _sync_folder(folder.parent)

    def _prune(self, step: int) -> None:
        # Files of later steps are left alone: they are not older, and they may be all that another run has.
        older = [path for other, path in self._files() if other <= step]
        for path in older[: -self.keep]:
            with contextlib.suppress(OSError):  # one that stays takes room and does no harm
                path.unlink()

    def _clean(self) -> None:
        """Remove temporary files of writers that are gone; a living one holds its lock."""
        for path in self.path.glob(f".step-*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


class BackgroundWriter:
    """Writes checkpoints in a thread, one at a time; an error of one is raised by the next call.

    The state must be a snapshot (`codec.clone_state`): training goes on while it is written. Call `wait` before the
    process ends, or the last error is never seen.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self.folder = folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="melodeon-checkpoint")
        self._pending: Future[Path] | None = None

    def write(
        self, step: int, state: object, definition: Definition, meta: Mapping[str, JsonValue] | None = None
    ) -> None:
        """Wait for the one before, then start writing this one."""
        self.wait()
        try:
            self._pending = self._pool.submit(self.folder.write, step, state, definition, meta)
        except RuntimeError:  # the script has ended, and threads take no more work: nothing is left to do beside it
            self.folder.write(step, state, definition, meta)

    def wait(self) -> Path | None:
        """Wait for the one in flight and return its file, or None where there is none."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
