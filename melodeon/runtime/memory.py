"""Memory by its address, and memory without a name: what the standard library has no call for."""

import contextlib
import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import cast

_memory_view = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.restype = ctypes.py_object
_memory_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_PYBUF_WRITE = 0x200

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
"""Of `mmap`; neither is named by the mmap module."""
_NAME = "melodeon"
_SHOWN_AS = f"/memfd:{_NAME} (deleted)"
"""How the system shows our shared memory among the files that a process has open or mapped."""
_POPULATE_WRITE = 23
"""Of `madvise`; Linux 5.14, and not yet named by the mmap module."""
_PIECE = 32 << 20
HUGE_FROM = 4 << 20
"""Below this many bytes huge pages save nothing."""
_KEEP = ((-1, -1), (-4, 0))
"""glibc's M_TRIM_THRESHOLD: never; M_MMAP_MAX: no block, however large, is a mapping of its own."""


def raw_view(address: int, size: int) -> memoryview:
    """Memory at an address as bytes, writable and uncopied; the caller holds whatever owns it."""
    return cast(memoryview, _memory_view(address, size, _PYBUF_WRITE)) if size else memoryview(b"")


def reserve(size: int) -> int | None:
    """A descriptor of new memory that processes can share; None where the system has none to give."""
    descriptor = -1
    try:
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        _forget_in_forks()
        # Reserve the pages now: writing to memory that is not there would be a bus error inside a step.
        os.posix_fallocate(descriptor, 0, max(size, 1))
    except (OSError, AttributeError):
        if descriptor >= 0:
            os.close(descriptor)
        return None
    return descriptor


@cache
def _forget_in_forks() -> None:
    """Have a process that is forked from this one let go of shared memory: it is the workers' business alone.

    Loader processes are such, and outlive the view they were forked in: they would hold all of its memory to the end.
    """
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Give up what is open and mapped. Objects that still know the descriptors and addresses may close and unmap them:
    each of them is taken by something harmless.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the folder's own is closed by now
            if str(link.readlink()) == _SHOWN_AS:
                os.dup2(nothing, int(link.name), inheritable=False)
    os.close(nothing)
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(_SHOWN_AS):
            start, end = (int(place, 16) for place in line.split(" ", 1)[0].split("-"))
            _LIBC.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, how, -1, 0)


def own_pages(size: int) -> mmap.mmap:
    """Memory that is not the heap's, on huge pages where the system has them; it goes back when nobody holds it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has none by default
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them refuses
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def populate(address: int, size: int) -> None:
    """Have the pages mapped now, and not one by one when they are first written; an older kernel refuses."""
    for at in range(0, size, _PIECE):
        # In pieces: the whole would keep the process from mapping anything else meanwhile.
        if _LIBC.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(min(_PIECE, size - at)), _POPULATE_WRITE):
            return


def keep_freed() -> None:
    """Have glibc keep the memory that is freed, instead of giving it back and faulting it in again in every step.

    What it does by itself is a matter of a heap's luck for blocks below 32 MiB: of one script, some processes had
    40,000 page faults a step. Larger ones it always gives back, and a step of wide layers took twice as long.
    The price is a heap that stays as large as it was in the largest step: 10 to 15 % above the highest that stock
    glibc needs, where batches differ in length.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        for parameter, value in _KEEP:
            mallopt(parameter, value)


def make_room(size: int) -> None:
    """Have the heap grow by so many bytes, and keep them for what is allocated next: by `keep_freed`, on this thread.

    On huge pages where the system has them: a first step would bring the memory in by small ones.
    """
    if not hasattr(_LIBC, "mallopt") or not (address := _LIBC.malloc(ctypes.c_size_t(size))):
        return
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0 and hasattr(mmap, "MADV_HUGEPAGE"):
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)
        populate(start, whole)
    _LIBC.free(address)
