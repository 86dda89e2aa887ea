"""Lines of files that others write, as they come, until whoever writes them has ended.

Files cannot be waited for portably, so they are looked at every `FOLLOW_S`; the writer's end is waited for in the same
selector, and so is not missed by a moment. The last look is after that end: nothing is left out.
"""

import contextlib
import os
import selectors
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

FOLLOW_S = 0.2
"""How often files are looked at."""

PIECE_BYTES = 1 << 20
"""How much of a file is read at once."""

T = TypeVar("T")


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
        return list(self.lines(last=last))

    def lines(self, *, last: bool = False) -> Iterator[bytes]:
        """The same one by one, of a file that may not fit the memory."""
        found = self._new(last=last)
        if self._keep is not None:
            found = iter(last_of(found, self._keep))
            self._keep = None
        yield from found

    def _new(self, *, last: bool) -> Iterator[bytes]:
        for piece in self._pieces():
            *lines, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            yield from lines
        if last and self._rest:
            yield self._rest
            self._rest = b""

    def _pieces(self) -> Iterator[bytes]:
        """What is there now, piece by piece, and not what a busy writer adds meanwhile."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(self._at)
            while self._at < end and (piece := file.read(min(PIECE_BYTES, end - self._at))):
                if piece.endswith(b"\r"):  # it may be half of a line's end
                    piece += file.read(1)
                self._at += len(piece)
                yield piece


def last_of(items: Iterable[T], keep: int | None) -> deque[T]:
    """The last so many, or all; a number above any that a queue can count means all."""
    return deque(items, maxlen=None if keep is None else min(keep, sys.maxsize))


def ticks(is_over: Callable[[], bool], pid: int | None, interval_s: float = FOLLOW_S) -> Iterator[bool]:
    """True again and again, and at last False once: when process `pid` has ended, or `is_over` says so."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        if pid is not None and hasattr(os, "pidfd_open"):
            # A damaged file may name a process of a number that none can have.
            with contextlib.suppress(OSError, OverflowError):
                ended = os.pidfd_open(pid)
                stack.callback(os.close, ended)
                selector.register(ended, selectors.EVENT_READ)
        while not is_over():
            yield True
            if selector.select(interval_s):
                break
    yield False
