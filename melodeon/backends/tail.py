"""Growing files, read as they grow: what was read once is not read again."""

from collections.abc import Callable
from pathlib import Path

from melodeon.backends.streams import Lines

PIECE = 1 << 20


class Tail:
    """Hands on what is appended to a file, in whole lines."""

    def __init__(self, path: Path, sink: Callable[[bytes], None], *, from_end: bool = False) -> None:
        self._path = path
        self._lines = Lines(sink)
        self._at = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> None:
        """Hand on what is new; a file that is not there yet has nothing new."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size <= self._at:
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            while data := file.read(PIECE):
                self._at += len(data)
                self._lines.feed(data)

    def close(self) -> None:
        """Hand on the rest, though its last line may have no end."""
        self.read()
        self._lines.close()
