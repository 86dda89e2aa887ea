"""A job's output in pieces: all incarnations one after the other, with a line between two of them, in each the workers'
lines as they are found.

Nothing is remembered between two calls: the mark that a piece ends with says how far every file was read. To keep it
short it lists only workers that may still print; those that have ended and were read are a few ranges of numbers.

    3~0-5_7~6.1024.0_8.0.77     incarnation 3; workers 0 to 5 and 7 are read, of 6 there are 1024 bytes of its log
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from melodeon.backends.fleet_folder import owner_of
from melodeon.coord.marks import read_mark
from melodeon.core.errors import UsageError
from melodeon.core.service import LogChunk
from melodeon.core.text import harmless

STREAMS = ("log", "err")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_MARK = re.compile(r"(\d{1,9})~((?:\d{1,9}(?:-\d{1,9})?_?)*)~((?:\d{1,9}\.\d{1,15}\.\d{1,15}_?)*)")
_WHOLE_LINE = 1 << 12
"""A piece is at least this long, so that a line of usual length is not cut."""


@dataclass(slots=True)
class _Mark:
    incarnation: int
    read: list[tuple[int, int]] = field(default_factory=list)
    """First and last of the workers that have ended and were read to the end."""
    at: dict[int, list[int]] = field(default_factory=dict)
    """Worker -> bytes read of its two streams."""

    def has_read(self, worker: int) -> bool:
        """Whether this worker has nothing more to say."""
        return any(first <= worker <= last for first, last in self.read)


def read_logs(job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
    """The output after the mark `start` ("": from the beginning), at most about `limit` bytes of it."""
    runs = _runs(job_dir)
    mark = _parse(start) if start else _Mark(min(runs, default=1))
    left = max(limit, _WHOLE_LINE)
    text: list[str] = []
    while True:
        run_dir = runs.get(mark.incarnation)
        over, is_all = (False, True) if run_dir is None else _read_run(run_dir, mark, worker, left, text)
        later = min((number for number in runs if number > mark.incarnation), default=None)
        left = max(limit, _WHOLE_LINE) - sum(len(piece) for piece in text)
        if later is None or not is_all or not (over or run_dir is None) or left <= 0:
            return LogChunk(text="".join(text), next=_write(mark), over=over and is_all and later is None)
        mark = _Mark(later)
        text.append(f"--- start {later} ---\n")


def _runs(job_dir: Path) -> dict[int, Path]:
    """Incarnation -> its folder."""
    found = {}
    for path in job_dir.glob(f"{job_dir.name}.*"):
        number = path.name.removeprefix(f"{job_dir.name}.")
        if number.isdecimal() and path.is_dir():
            found[int(number)] = path
    return dict(sorted(found.items()))


def _read_run(run_dir: Path, mark: _Mark, wanted: int | None, left: int, text: list[str]) -> tuple[bool, bool]:
    """Whether the run has ended, and whether all of what it has printed so far was read."""
    owner = owner_of(run_dir)
    over = owner is None or not owner.is_alive  # looked at before the files: what it wrote before its end is there
    is_all = True
    for worker in _workers(run_dir):
        if mark.has_read(worker) or wanted not in (None, worker):
            continue
        if left <= 0:
            return over, False
        ended = over or not _is_running(run_dir, worker)
        at = mark.at.setdefault(worker, [0, 0])
        rest = 0
        for number, stream in enumerate(STREAMS):
            data, size, more = _piece(run_dir / f"worker-{worker}.{stream}", at[number], left, last=ended)
            at[number] += size
            left -= size
            rest += more
            text.extend(_lines(data, "" if wanted is not None else f"[worker {worker}] "))
        if rest:
            is_all = False
        elif ended:
            mark.read.append((worker, worker))
            del mark.at[worker]
    return over, is_all


def _workers(run_dir: Path) -> list[int]:
    numbers = {path.stem.removeprefix("worker-") for end in STREAMS for path in run_dir.glob(f"worker-*.{end}")}
    return sorted(int(number) for number in numbers if number.isdecimal())


def _is_running(run_dir: Path, worker: int) -> bool:
    """A worker has left its mark before it has printed anything."""
    return any(read_mark(path) for path in (run_dir / "agents").glob(f"*/worker-{worker}.pid"))


def _piece(path: Path, at: int, limit: int, *, last: bool) -> tuple[bytes, int, int]:
    """Whole lines from there on, how many bytes that were, and how many are left to be read at once.

    With `last` also a line that has no end: it will not get one.
    """
    try:
        # The folder is the job's: a link there must not lead us elsewhere, nor a pipe hold us.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"", 0, 0
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return b"", 0, 0
        file.seek(max(at - 1, 0))
        before = file.read(1) if at else b""
        data = file.read(max(limit, 0))
    skipped = int(before == b"\r" and data.startswith(b"\n"))  # the other half of a line end
    rest = max(0, found.st_size - at)
    is_cut = len(data) < rest
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if last and not is_cut:
        end = len(data)
    elif not end and len(data) >= _WHOLE_LINE:
        end = _character_end(data)  # a line that is longer than the piece
    return data[skipped:end], end, rest - end if last or is_cut else 0


def _character_end(data: bytes) -> int:
    """Where the last whole character of UTF-8 ends."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if length <= back else len(data) - back
    return len(data)


def _lines(data: bytes, name: str) -> Iterable[str]:
    if not data:
        return
    rows = _LINE_END.split(data)
    if not rows[-1]:
        rows.pop()
    for row in rows:
        yield f"{name}{harmless(row.decode(errors='replace'))}\n"


# -- marks -------------------------------------------------------------------------------------------------------------


def _parse(text: str) -> _Mark:
    match = _MARK.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no mark of a log: use the one that came with the last piece, or none")
    mark = _Mark(int(match[1]))
    for part in filter(None, match[2].split("_")):
        first, _, last = part.partition("-")
        mark.read.append((int(first), int(last or first)))
    for part in filter(None, match[3].split("_")):
        worker, *at = (int(number) for number in part.split("."))
        mark.at[worker] = at
    return mark


def _write(mark: _Mark) -> str:
    at = "_".join(f"{worker}.{out}.{err}" for worker, (out, err) in sorted(mark.at.items()) if out or err)
    merged: list[tuple[int, int]] = []
    for first, last in sorted(mark.read):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    read = "_".join(str(first) if first == last else f"{first}-{last}" for first, last in merged)
    return f"{mark.incarnation}~{read}~{at}"
