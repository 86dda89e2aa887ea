"""The jobs that run on this machine, as one small file each, so that other terminals find them.

The launcher writes its job's entry and removes it at the end. An entry whose launcher is gone is nobody's: it is not
listed, and swept up in passing. Whoever changes an entry holds the folder's lock. The folder belongs to one user and is
closed to others; whoever can read it can talk to the jobs.

A run's folder is what tells jobs apart: two clusters of one user may well have jobs of the same id.
"""

import contextlib
import difflib
import fcntl
import glob
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from melodeon.coord.marks import started
from melodeon.core.errors import MelodeonError, NotFound, UsageError

NEWEST = "last"
"""What the newest job may be called instead of by its id; no run gets this name."""
MOST_NAME = 150
"""Characters of an id in the name of its file."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One running job."""

    id: str
    run_dir: str
    pid: int
    """The launcher's."""
    started: int
    """When the launcher started, by the kernel's count: tells it from a later process of the same number."""
    agents: tuple[str, ...]
    """The agents' sockets."""
    created: str

    @property
    def is_alive(self) -> bool:
        """Whether its launcher still runs."""
        return started(self.pid) == self.started


def folder() -> Path:
    """The registry's folder, made when missing; refused when it is somebody else's."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    root = base / f"melodeon-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise MelodeonError(
            f"{root}, where running jobs are found, cannot be made ({error.strerror}): set XDG_RUNTIME_DIR to a folder "
            "of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MelodeonError(
            f"{root} must be a folder that only you can open, and it is not: remove it, or set XDG_RUNTIME_DIR"
        )
    jobs = root / "jobs"
    jobs.mkdir(mode=0o700, exist_ok=True)
    return jobs


def file_name(job: str, run_dir: str | Path) -> str:
    """What a job's entry is called; the folder as the entry says it."""
    return f"{job[:MOST_NAME]}@{hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:16]}.json"


def require_free(job: str, run_dir: Path) -> None:
    """Refuse an id under which a job runs that has another folder."""
    for path in _paths(job):
        known = _read(path)
        if known is not None and known.id == job and known.is_alive and Path(known.run_dir) != run_dir.resolve():
            raise UsageError(f"job {job!r} runs already in {known.run_dir}: give another --name")


def write(entry: Entry, *, alone: bool = False) -> None:
    """Add a job, or say something new of it; `alone`: not while another runs under its id."""
    path = folder() / file_name(entry.id, entry.run_dir)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}")
    with _locked():
        if alone:
            require_free(entry.id, Path(entry.run_dir))
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, so that the mode is right from the start
            file.write(msgspec.json.encode(entry))
        temporary.replace(path)


def remove(job: str, run_dir: Path | None = None) -> None:
    """Take a job off the list, where a folder is named only the one that runs there."""
    with _locked():
        for path in _paths(job):
            known = _read(path)
            if known is not None and known.id == job and (run_dir is None or Path(known.run_dir) == run_dir):
                path.unlink(missing_ok=True)


def is_listed(entry: Entry) -> bool:
    """Whether its launcher runs and has not taken it off the list."""
    return entry.is_alive and (folder() / file_name(entry.id, entry.run_dir)).exists()


def _paths(job: str) -> list[Path]:
    """The entries of all jobs of an id, and perhaps of others that begin as it does."""
    return list(folder().glob(f"{glob.escape(job[:MOST_NAME])}@*.json"))


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Nobody else changes an entry meanwhile."""
    fd = os.open(folder() / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(path: Path) -> Entry | None:
    """The entry, or None where there is none, or one of another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None


def entries() -> list[Entry]:
    """The running jobs, oldest first."""
    found = []
    for path in folder().glob("*.json"):
        entry = _read(path)
        if entry is not None and entry.is_alive:
            found.append(entry)
        elif entry is not None:
            _sweep(path)
    return sorted(found, key=lambda entry: (entry.created, entry.id))


def _sweep(path: Path) -> None:
    """Remove a dead job's entry, unless a new one has taken its place."""
    with _locked():
        entry = _read(path)
        if entry is not None and not entry.is_alive:
            path.unlink(missing_ok=True)


def find(job: str | Path | None = None) -> Entry:
    """A running job by its id, the beginning of it, or its run folder; None or `last`: the newest."""
    if job == "":  # the beginning of any id
        raise UsageError("job '' is no name: give a job's id, the beginning of it, or `last`")
    running = entries()
    if not running:
        raise NotFound(
            f"job {str(job or NEWEST)!r} is not there: no job runs on this machine; start one by `melodeon run`"
        )
    if job is None or job == NEWEST:
        return running[-1]
    text = str(job)
    folder = Path(text.replace("\0", "")).resolve()  # no path has one, and none may be asked for
    exact = [entry for entry in running if text == entry.id or folder == Path(entry.run_dir)]
    matching = exact or [entry for entry in running if entry.id.startswith(text)]
    if len(matching) == 1:
        return matching[0]
    if len({entry.id for entry in matching}) == 1:
        folders = ", ".join(entry.run_dir for entry in matching)
        raise NotFound(
            f"{len(matching)} jobs {matching[0].id!r} run on this machine: name a run's folder, of {folders}"
        )
    if matching:
        names = ", ".join(entry.id for entry in matching)
        raise NotFound(f"job {text!r} could be any of {names}: give more letters of its id")
    near = difflib.get_close_matches(text, [entry.id for entry in running], n=1, cutoff=0.0)
    raise NotFound(f"job {text!r} does not run on this machine: did you mean {(near or [running[-1].id])[0]}?")
