"""Standard output for what a command prints, and for nothing that a library writes by itself."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDOUT, STDERR = 1, 2
"""Descriptors."""


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What is written in here goes to standard error, past Python too, as a solver of a policy does now and then."""
    kept: int | None = None
    with suppress(OSError):  # one of the two is closed: there is nothing to spoil, or nowhere else to write to
        kept = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
    try:
        yield
    finally:
        if kept is not None:
            # What C holds back must not come out afterwards.
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, STDOUT)
            os.close(kept)
