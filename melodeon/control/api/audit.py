"""Who did what: one line for every request that changes something, and for those that were turned away.

    {"at": 1.8e9, "user": "ann", "what": "cancel", "job": "cnn-3", "ok": true, "status": 200, "from": "127.0.0.1"}

Never a token, a query or a body. The file is only ever added to; a full one is set aside once.
"""

import os
import time
from collections import Counter
from pathlib import Path

import msgspec

from melodeon.control.trouble import tell

LARGEST = 64 << 20
"""Bytes after which the file is set aside as `.1`."""
STRANGERS_S = 1.0
"""Of requests without a token, one of each status in so many seconds is noted, with how many there were: they must not
fill a disk."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log."""

    at: float
    user: str | None
    what: str
    job: str | None = None
    ok: bool
    status: int
    client: str = msgspec.field(default="", name="from")
    times: int = 1


class Audit:
    """The audit log; without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._strangers: Counter[int] = Counter()
        self._told_at: dict[int, float] = {}

    def note(self, *, user: str | None, what: str, job: str | None, status: int, client: str) -> None:
        """Add a line."""
        times = 1
        if user is None:
            self._strangers[status] += 1
            now = time.monotonic()
            if now - self._told_at.get(status, -STRANGERS_S) < STRANGERS_S:
                return
            times, self._told_at[status] = self._strangers.pop(status), now
        line = Line(
            at=round(time.time(), 3),
            user=user,
            what=what,
            job=job,
            ok=status < 400,
            status=status,
            client=client,
            times=times,
        )
        self._write(msgspec.json.encode(line) + b"\n")

    def _write(self, line: bytes) -> None:
        if self._path is None:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
                full = os.fstat(fd).st_size >= LARGEST
            finally:
                os.close(fd)
            if full:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
        except OSError as error:
            # What was asked has happened by now: it is not undone, but somebody should know.
            tell(f"the audit log cannot be written ({error})")
