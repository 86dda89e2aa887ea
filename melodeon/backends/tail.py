"""Growing files, read as they grow: what was read once is not read again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from melodeon.backends.streams import Lines

LOOK_S = 0.25
"""How often growing files are looked at."""
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


class EventTail:
    """Hands on a run's events as they are written, from now on."""

    def __init__(self, run_dir: Path, on_event: Callable[[dict[str, object]], None]) -> None:
        self._on_event = on_event
        self._tail = Tail(run_dir / "events.jsonl", self._heard, from_end=True)

    def read(self) -> None:
        """Hand on what is new."""
        self._tail.read()

    def _heard(self, data: bytes) -> None:
        for _, event in events_in(data):
            self._on_event(event)


def events_in(data: bytes) -> Iterator[tuple[bytes, dict[str, object]]]:
    """The events in some lines, each with its line; half a line, as somebody who was killed leaves it, is none."""
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield line, event
