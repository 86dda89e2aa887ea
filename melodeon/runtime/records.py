"""A file of lines that follow from the run alone: line n has the same bytes and the same place, whoever writes it.

So two workers can write it at once without harm: one that was declared gone and does not know it yet, and the one that
took its place. Every worker counts the bytes; one of them writes.
"""

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RECENT = 8
"""Lines that every worker keeps, in case the one that writes is lost before they are written."""


class Records:
    """One such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=_RECENT)
        self.size = 0
        """Bytes of all lines so far, written here or not."""

    def add(self, line: str, *, write: bool) -> None:
        """The next line."""
        body = line.encode()
        self._recent.append((self.size, body))
        if write:
            self._put(self.size, body)
        self.size += len(body)

    def rewrite(self) -> None:
        """Write the newest lines once more: the one who was to write them may not have."""
        for at, body in self._recent:
            self._put(at, body)

    def start_at(self, size: int) -> None:
        """So many bytes are there already."""
        self.size = size
        self._recent.clear()

    def carried(self) -> dict[str, Any]:
        """What another worker must know to go on, however long the file is."""
        return {"size": self.size, "recent": [[at, body.decode()] for at, body in self._recent]}

    def adopt(self, carried: Mapping[str, Any]) -> None:
        """Go on from what another worker knows."""
        self.start_at(int(carried["size"]))
        self._recent.extend((int(at), body.encode()) for at, body in carried["recent"])

    def cut(self) -> None:
        """Nothing follows what was added: cut off what an earlier life of the job has left."""
        if self._path.exists():
            os.truncate(self._path, self.size)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, at: int, body: bytes) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._fd, body, at)
