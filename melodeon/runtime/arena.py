"""Shared memory for the workers of one host: one segment per worker, mapped by all.

A segment has no name: a worker opens another's through the other's table of open files. So nothing is left behind when
one is killed at any moment, and a small /dev/shm (containers often have 64 MB) is no limit. Agreement comes first: if
any worker cannot make or map a segment (another host, another namespace, another user), every worker learns it and the
caller takes sockets instead.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from melodeon.runtime.group import Group

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_LIBC = ctypes.CDLL(None)
_POPULATE_WRITE = 23
_PIECE = 32 << 20


def map_segments(group: Group, sizes: Sequence[int]) -> list[torch.Tensor] | None:
    """Every worker's segment of `sizes[worker]` bytes, mapped here; None, on all workers, where one could not."""
    descriptor = _make(sizes[group.rank])
    try:
        where = "" if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"
        offers = [offer.decode().partition(" ") for offer in group.gather_bytes(f"{_host_id()} {where}".encode())]
        segments: list[torch.Tensor] | None = None
        if len({host for host, _, _ in offers}) == 1 and all(host and path for host, _, path in offers):
            segments = _map([path for _, _, path in offers], sizes)
        agreed = b"no" not in group.gather_bytes(b"no" if segments is None else b"ok")
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise
    if descriptor is not None:
        # Memory is given back by the last who lets go of it, and giving it back takes long: this way it is nobody's
        # tensor that goes last, but the file, when the view is over.
        group.at_close(partial(os.close, descriptor))
    if segments is None or not agreed:
        return None
    _populate(segments[group.rank])
    return segments


def _make(size: int) -> int | None:
    """A descriptor of new memory."""
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


def _map(paths: Sequence[str], sizes: Sequence[int]) -> list[torch.Tensor] | None:
    try:
        return [
            torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
            for path, size in zip(paths, sizes, strict=True)
        ]
    except (RuntimeError, OSError):
        return None


def _populate(segment: torch.Tensor) -> None:
    """Have the pages mapped now, while others train, and not one by one in the first step."""
    address, size = segment.data_ptr(), segment.numel()
    for at in range(0, size, _PIECE):
        # In pieces: the whole would keep the process from mapping anything else meanwhile. Before Linux 5.14: refused.
        if _LIBC.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(min(_PIECE, size - at)), _POPULATE_WRITE):
            return


def _host_id() -> str:
    """What workers have in common that know one another's processes by the same numbers; empty: unknown."""
    try:
        return f"{_BOOT_ID.read_text().strip()}:{_NAMESPACE.readlink()}"
    except OSError:
        return ""
