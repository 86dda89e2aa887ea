"""Bytes from a pipe, handed on in whole lines.

Two streams that share a log or a terminal must not cut each other's lines. A carriage return also ends a piece, so that
a script's own progress bar moves.
"""

from collections.abc import Callable

LONGEST = 1 << 20
"""A line longer than this is handed on in pieces, so that memory stays bounded."""


class Lines:
    """Collects bytes and calls `sink` with everything up to the last line end."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take some bytes."""
        self._rest += data
        end = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        if not end and len(self._rest) >= LONGEST:
            end = len(self._rest)
        if end:
            whole, self._rest = self._rest[:end], self._rest[end:]
            self._sink(whole)

    def close(self) -> None:
        """Hand on what is left, though its line has no end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._sink(rest)
