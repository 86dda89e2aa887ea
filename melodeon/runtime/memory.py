"""Memory by its address, and memory without a name: what the standard library has no call for."""

import ctypes
import os
from typing import cast

_memory_view = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.restype = ctypes.py_object
_memory_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_PYBUF_WRITE = 0x200

_LIBC = ctypes.CDLL(None)
_POPULATE_WRITE = 23
"""Of `madvise`; Linux 5.14, and not yet named by the mmap module."""
_PIECE = 32 << 20
_KEEP = ((-1, 1 << 30), (-3, 32 << 20))
"""glibc's M_TRIM_THRESHOLD, and M_MMAP_THRESHOLD, which may be no higher; blocks below it come from the heap."""


def raw_view(address: int, size: int) -> memoryview:
    """Memory at an address as bytes, writable and uncopied; the caller holds whatever owns it."""
    return cast(memoryview, _memory_view(address, size, _PYBUF_WRITE)) if size else memoryview(b"")


def reserve(size: int) -> int | None:
    """A descriptor of new memory that processes can share; None where the system has none to give."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("melodeon", os.MFD_CLOEXEC)
        # Reserve the pages now: writing to memory that is not there would be a bus error inside a step.
        os.posix_fallocate(descriptor, 0, max(size, 1))
    except (OSError, AttributeError):
        if descriptor >= 0:
            os.close(descriptor)
        return None
    return descriptor


def populate(address: int, size: int) -> None:
    """Have the pages mapped now, and not one by one when they are first written; an older kernel refuses."""
    for at in range(0, size, _PIECE):
        # In pieces: the whole would keep the process from mapping anything else meanwhile.
        if _LIBC.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(min(_PIECE, size - at)), _POPULATE_WRITE):
            return


def keep_freed() -> None:
    """Have glibc keep the memory that is freed, instead of giving it back and faulting it in again in every step.

    What it does by itself is a matter of a heap's luck: of one script, some processes had 40,000 page faults a step.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        for parameter, value in _KEEP:
            mallopt(parameter, value)
