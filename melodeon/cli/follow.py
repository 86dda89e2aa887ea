"""Lines of files that others write, as they come, until whoever writes them has ended.

Files cannot be waited for portably, so they are looked at every `FOLLOW_S`; the writer's end is waited for in the same
selector, and so is not missed by a moment. The last look is after that end: nothing is left out.
"""

import contextlib
import os
import selectors
from collections.abc import Callable, Iterator
from pathlib import Path

FOLLOW_S = 0.2
"""How often files are looked at."""


class Tail:
    """Whole lines of one growing file; a carriage return ends a line too, so that progress bars are seen."""

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._keep = keep
        """Of what is there at first, only this many last lines; None keeps all."""

    def read(self, *, last: bool = False) -> list[bytes]:
        """The lines since the last call, without their ends; with `last` also one that was not ended."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            data = b""
        self._at += len(data)
        *lines, self._rest = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if last and self._rest:
            lines.append(self._rest)
            self._rest = b""
        if self._keep is not None:
            lines = lines[max(0, len(lines) - self._keep) :]
            self._keep = None
        return lines


def ticks(is_over: Callable[[], bool], pid: int | None, interval_s: float = FOLLOW_S) -> Iterator[bool]:
    """True again and again, and at last False once: when process `pid` has ended, or `is_over` says so."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        if pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                ended = os.pidfd_open(pid)
                stack.callback(os.close, ended)
                selector.register(ended, selectors.EVENT_READ)
        while not is_over():
            yield True
            if selector.select(interval_s):
                break
    yield False
