"""What a process has open or mapped, for tests that nothing is left behind."""

from contextlib import suppress
from pathlib import Path


def open_memory(pid: int | str = "self") -> list[str]:
    """The descriptors of shared memory that a process holds: segments of exchanges, and the rings of doors."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(path.readlink().name)
    return [name for name in found if name.startswith("memfd:melodeon")]


def mapped_memory(pid: int | str = "self") -> list[str]:
    """The pieces of shared memory that are part of a process's own."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "/memfd:melodeon" in line]
