"""Shared memory for the workers of one host: one segment per worker, mapped by all.

A segment has no name: a worker opens another's through the other's table of open files. So nothing is left behind when
one is killed at any moment, and a small /dev/shm (containers often have 64 MB) is no limit. Agreement comes first: if
any worker cannot make or map a segment (another host, another namespace, another user), every worker learns it and the
caller takes sockets instead.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from melodeon.runtime.group import Group
from melodeon.runtime.memory import populate, reserve

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def map_segments(group: Group, sizes: Sequence[int]) -> list[torch.Tensor] | None:
    """Every worker's segment of `sizes[worker]` bytes, mapped here; None, on all workers, where one could not."""
    descriptor = reserve(sizes[group.rank])
    with ExitStack() as unless_agreed:
        where = ""
        if descriptor is not None:
            unless_agreed.callback(os.close, descriptor)
            where = f"/proc/{os.getpid()}/fd/{descriptor}"
        offers = [offer.decode().partition(" ") for offer in group.gather_bytes(f"{_host_id()} {where}".encode())]
        segments: list[torch.Tensor] | None = None
        if len({host for host, _, _ in offers}) == 1 and all(host and path for host, _, path in offers):
            segments = _map([path for _, _, path in offers], sizes)
        agreed = b"no" not in group.gather_bytes(b"no" if segments is None else b"ok")
        if descriptor is None or segments is None or not agreed:
            return None
        unless_agreed.pop_all()
    # Memory is given back by the last who lets go of it, and giving it back takes long: this way it is nobody's tensor
    # that goes last, but the file, when the view is over.
    group.hold("segment", partial(os.close, descriptor))
    for segment in (segments[group.rank], *segments):
        populate(segment.data_ptr(), segment.numel())  # while others train; its own first, which takes longest
    return segments


def _map(paths: Sequence[str], sizes: Sequence[int]) -> list[torch.Tensor] | None:
    try:
        return [
            torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
            for path, size in zip(paths, sizes, strict=True)
        ]
    except (RuntimeError, OSError):
        return None


def _host_id() -> str:
    """What workers have in common that know one another's processes by the same numbers; empty: unknown."""
    try:
        return f"{_BOOT_ID.read_text().strip()}:{_NAMESPACE.readlink()}"
    except OSError:
        return ""
