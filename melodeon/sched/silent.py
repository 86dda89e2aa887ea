"""Solvers that keep their words to themselves: what C code prints while one is called goes nowhere.

SciPy's HiGHS prints a line of its own now and then, whatever its options say. C's stream is turned away, not the
descriptor below it: what Python writes, here or in another thread, comes out as ever.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def _streams() -> tuple[ctypes.c_void_p, int | None, int | None] | None:
    """Where C keeps its standard output, that stream, and one that leads nowhere; None: this C keeps it otherwise."""
    try:
        library = ctypes.CDLL(None)
        place = ctypes.c_void_p.in_dll(library, "stdout")
    except (OSError, TypeError, ValueError):
        return None
    library.fopen.restype = ctypes.c_void_p
    return place, place.value, library.fopen(b"/dev/null", b"w")


@contextmanager
def silent() -> Iterator[None]:
    """Nothing that C code prints in here is seen."""
    found = _streams()
    if found is None or found[2] is None:
        yield
        return
    place, usual, nowhere = found
    place.value = nowhere
    try:
        yield
    finally:
        place.value = usual
