"""Who is who on a node, in files: a process that must outlive its maker leaves a mark that others can check.

A mark holds the process's number and when it started (the kernel's count), so that a number that was given again to
somebody else is not taken for it. A restarted agent, and the launcher at its end, find every living worker by them.

A worker's mark has three states: empty (it was asked for), begun (a process is being made), and whole.
"""

import contextlib
import os
import signal
from pathlib import Path

_BEGUN = "0 0"


def write_mark(path: Path, pid: int | None = None) -> None:
    """Note a process (this one by default); a reader sees the whole mark or none."""
    number = os.getpid() if pid is None else pid
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f"{number} {started(number) or 0}")
    temporary.replace(path)


def begin_mark(path: Path) -> None:
    """From now on the process may exist."""
    path.write_text(_BEGUN)


def is_begun(path: Path) -> bool:
    """Whether the process exists, may exist, or has existed."""
    return path.stat().st_size > 0


def is_whole(path: Path) -> bool:
    """Whether the process has said who it is."""
    return path.read_text() not in ("", _BEGUN)


def read_mark(path: Path) -> int | None:
    """The marked process, if it still runs."""
    try:
        pid, start = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return None
    return pid if started(pid) == start else None


def read_marks(folder: Path) -> dict[int, int]:
    """Worker -> process, for the marked workers of a node that still run."""
    found: dict[int, int] = {}
    for path in folder.glob("worker-*.pid"):
        pid = read_mark(path)
        if pid is not None:
            found[int(path.stem.removeprefix("worker-"))] = pid
    return found


def started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if it has ended (a zombie has)."""
    try:
        # The second field is the name in brackets, which may hold anything; counting starts after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kill_group(pid: int) -> None:
    """End a worker with all that it started."""
    if pid <= 1:
        return  # to the kernel these mean whole sets of processes
    # The second is for one that has not made its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def last_line(log: Path) -> str:
    """What a process said at last."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
