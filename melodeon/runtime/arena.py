"""Shared memory for the workers of one host: one segment per worker, mapped by all, gone from the file system at once.

Agreement comes first: if any worker cannot make or map a segment (another host, another mount namespace, a small
/dev/shm), every worker learns it and the caller takes sockets instead.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import torch

from melodeon.runtime.group import Group

_FOLDER = Path("/dev/shm")  # noqa: S108  # made with O_EXCL, mode 0600, under a random name, and unlinked at once
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def map_segments(group: Group, sizes: Sequence[int]) -> list[torch.Tensor] | None:
    """Every worker's segment of `sizes[worker]` bytes, mapped here; None, on all workers, where one could not."""
    token = group.share_bytes(secrets.token_hex(8).encode(), root=0).decode()
    paths = [_FOLDER / f"melodeon-{token}-{worker}" for worker in range(group.size)]
    made = _make(paths[group.rank], sizes[group.rank])
    hosts = group.gather_bytes(_host_id() if made else b"")
    segments: list[torch.Tensor] | None = None
    if b"" not in hosts and len(set(hosts)) == 1:
        segments = _map(paths, sizes)
    agreed = b"no" not in group.gather_bytes(b"no" if segments is None else b"ok")
    if made:
        paths[group.rank].unlink(missing_ok=True)
    return segments if agreed else None


def _make(path: Path, size: int) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        # Reserve the pages now: writing to a sparse segment on a full /dev/shm would be a bus error inside a step.
        os.posix_fallocate(descriptor, 0, max(size, 1))
    except OSError:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
    return True


def _map(paths: Sequence[Path], sizes: Sequence[int]) -> list[torch.Tensor] | None:
    try:
        return [
            torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
            for path, size in zip(paths, sizes, strict=True)
        ]
    except (RuntimeError, OSError):
        return None


def _host_id() -> bytes:
    try:
        return f"{_BOOT_ID.read_text().strip()}:{_FOLDER.stat().st_dev}".encode()
    except OSError:
        return b""
