"""The run's `events.jsonl`: one line an event, from workers and from the master, for people and tools.

Several agents of one machine write to one file: each line is one append. Whoever watches (the launcher, `melodeon
top`) is sent each line too; a watcher that does not keep up is cut off and can read the file.
"""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from melodeon.coord import wire
from melodeon.coord.lines import Line
from melodeon.coord.messages import Record

MOST_UNREAD = 1 << 20
"""Bytes that a watcher may leave unread."""


class Events:
    """Writes events down and tells them to watchers."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._watchers: set[asyncio.StreamWriter] = set()

    def line(self, line: Line) -> None:
        """An event that a worker sent; what is no JSON object is dropped."""
        try:
            event = json.loads(line.text)
        except ValueError:
            return
        if isinstance(event, dict):
            self._write(line.worker, event)

    def record(self, record: Record) -> None:
        """An event of the master's."""
        self._write(-1, {"kind": record.kind, **record.values})

    def watch(self, writer: asyncio.StreamWriter) -> None:
        """Tell this one every event from now on."""
        self._watchers.add(writer)

    def unwatch(self, writer: asyncio.StreamWriter) -> None:
        """Not any more."""
        self._watchers.discard(writer)

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._fd)

    def _write(self, worker: int, event: dict[str, object]) -> None:
        stamped = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
        text = json.dumps(stamped, default=str)
        os.write(self._fd, text.encode() + b"\n")
        frame = wire.pack(Line(worker=worker, text=text))
        for watcher in list(self._watchers):
            if watcher.transport.get_write_buffer_size() > MOST_UNREAD:
                watcher.transport.abort()
                self.unwatch(watcher)
            else:
                watcher.write(frame)
