"""Ready-made partitions: a folder of files with one record per line, and a folder of .npy shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from melodeon.core.errors import NotFound, UsageError

CHUNK = 1 << 20


def list_files(folder: str | Path, pattern: str) -> dict[str, Path]:
    """The files of a folder that match, by their path in it, sorted: the same on every worker."""
    if not isinstance(folder, str | Path):
        raise UsageError(f"folder={folder!r} must be a path: give the folder that holds the partitions")
    root = Path(folder)
    if not root.is_dir():
        raise NotFound(f"{str(folder)!r} is not a folder: give the folder that holds the partitions")
    if not isinstance(pattern, str):
        raise UsageError(f"pattern={pattern!r} must be a text: give one like '*.txt', for paths in the folder")
    try:
        matches = sorted(root.glob(pattern))
    except (ValueError, NotImplementedError) as error:  # an empty one, or one that does not begin in the folder
        raise UsageError(
            f"pattern={pattern!r} cannot be ({error}): give one like '*.txt', for paths in the folder"
        ) from error
    found = {path.relative_to(root).as_posix(): path for path in matches if path.is_file()}
    if not found:
        raise NotFound(f"no file in {str(folder)!r} matches {pattern!r}: every file that matches is one partition")
    return found


def listed(files: Mapping[str, Path], counts: Mapping[str, int] | None, count: Callable[[Path], int]) -> dict[str, int]:
    """How many samples each file has: as told, or counted."""
    if counts is None:
        return {name: count(path) for name, path in files.items()}
    if not isinstance(counts, Mapping):
        raise UsageError(
            f"counts={counts!r} must be a mapping, from a file's path in the folder to its number of samples"
        )
    missing = [name for name in files if name not in counts]
    if missing:
        raise UsageError(
            f"counts has no number for {missing[0]!r}: give one for every file, or none to have them counted"
        )
    if unknown := [name for name in counts if name not in files]:
        raise UsageError(
            f"counts has a number for {unknown[0]!r}, and no such file matches: give one for every file, and no others"
        )
    return {name: counts[name] for name in files}


def count_lines(path: Path) -> int:
    """Lines of a file, the last one with or without its end."""
    number, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            number += chunk.count(b"\n")
            last = chunk[-1:]
    return number + (last != b"\n")


def read_lines(path: Path, parse: Callable[[str], Any]) -> Iterator[Any]:
    """One record per line."""
    with path.open("rb") as file:
        for line in file:
            yield parse(_text(path, line.rstrip(b"\r\n")))


def _text(path: Path, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{str(path)!r} has a line that is not UTF-8 ({error}): write it in UTF-8, or give Partitioned an `open` "
            "of your own"
        ) from error


class NpyShard:
    """Rows of a .npy file, copied out of it when they are read."""

    def __init__(self, path: Path) -> None:
        self._rows = open_npy(path)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        self._check()
        return np.array(self._rows[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Rows in one read."""
        self._check()
        if isinstance(indices, range) and indices.step == 1:
            return list(np.array(self._rows[indices.start : indices.stop]))
        return list(self._rows[list(indices)])

    def _check(self) -> None:
        """Where a mapped file has become shorter, the system would end the process by a bus error."""
        needed, found = self._rows.offset + self._rows.nbytes, self._rows.base.size()
        if found < needed:
            raise OSError(f"its file has shrunk to {found} bytes, and its rows took {needed}")


def count_rows(path: Path) -> int:
    """Rows of a .npy file; only its header is read."""
    return len(open_npy(path))


def open_npy(path: Path) -> Any:
    """The array, mapped and not read."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:  # EOFError: it is empty
        raise UsageError(
            f"{str(path)!r} is no .npy file that can be read in rows ({error}): write it with numpy.save, without "
            "objects"
        ) from error
    if not isinstance(rows, np.ndarray) or rows.ndim == 0:
        raise UsageError(f"{str(path)!r} holds no rows: a shard is an array whose first dimension counts its samples")
    return rows
