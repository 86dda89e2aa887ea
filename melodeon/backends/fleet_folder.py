"""A run's folder as the identity of one incarnation: it appears whole, with its owner's name in it, and only once.

The folder is made beside its place and renamed into it. A rename onto a folder that has anything in it fails, so of any
number of launchers, and of a controller that claims the incarnation so that it never begins, exactly one succeeds, and
nobody ever sees the folder without knowing whose it is.
"""

import contextlib
import errno
import os
import secrets
import select
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from melodeon.backends.fleet_values import Ended, How, LaunchOrder
from melodeon.coord.handed import hand, read_handed
from melodeon.coord.marks import kill_group, last_line, read_mark, read_marks, started
from melodeon.core.text import plain

OWNER = "launcher.json"
CLAIMED = "claimed"
"""The file in a folder that was made so that nobody else can."""
MOST_RECORD = 1 << 20
MOST_REASON = 2000
"""Characters of what a job says about its end."""
ENDS_S = 5.0
"""A killed process that the kernel cannot end within this time is not ours to wait for."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose run it is."""

    pid: int
    """The launcher; 0: claimed, it will never begin."""
    started: int
    """When the launcher started, by the kernel's count."""
    entry: str = ""
    """The file by which its job is found while it runs, in the registry of its user."""

    @property
    def is_alive(self) -> bool:
        """Whether the launcher still runs."""
        return self.pid > 0 and started(self.pid) == self.started


class _Record(msgspec.Struct):
    """What matters here of a run.json."""

    status: str = "running"
    exit_code: int | None = None
    reason: str | None = None
    steps: int | None = None
    digest: str | None = None


def take(run_dir: Path, owner: Owner, *, uid: int = -1, gid: int = -1) -> bool:
    """Make the run's folder for this owner; False if somebody was there first."""
    temporary = run_dir.with_name(f".{run_dir.name}.{secrets.token_hex(4)}")
    temporary.mkdir(mode=0o700)
    try:
        (temporary / OWNER).write_bytes(msgspec.json.encode(owner))
        if not owner.pid:
            (temporary / CLAIMED).touch()
        os.chown(temporary, uid, gid)
        temporary.rename(run_dir)
    except OSError as error:
        shutil.rmtree(temporary)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def claim(run_dir: Path) -> bool:
    """Make sure that nobody begins this run any more; False if somebody has begun."""
    return take(run_dir, Owner(pid=0, started=0))


def owner_of(run_dir: Path) -> Owner | None:
    """Whose the run is; None: nobody has made it yet."""
    try:
        return msgspec.json.decode((run_dir / OWNER).read_bytes(), type=Owner)
    except FileNotFoundError:
        return Owner(pid=0, started=0) if run_dir.exists() else None
    except (OSError, msgspec.MsgspecError):
        return Owner(pid=0, started=0)


def ended_of(run_dir: Path) -> Ended:
    """How a run ended whose launcher is gone."""
    if (run_dir / CLAIMED).exists():
        return Ended(status="unstarted", reason="it was not started: the controller ended before its launcher began")
    try:
        with (run_dir / "run.json").open("rb") as file:
            record = msgspec.json.decode(file.read(MOST_RECORD), type=_Record)
            written_at = os.fstat(file.fileno()).st_mtime
    except (OSError, msgspec.MsgspecError):
        record, written_at = _Record(), 0.0
    known: dict[str, How] = {"done": "done", "stopped": "stopped", "failed": "failed"}
    status = known.get(record.status)
    if status is None:
        said = plain(_last_words(run_dir))[:MOST_REASON]
        return Ended(
            status="lost", reason="its launcher is gone without a word" if not said else f"its launcher: {said}"
        )
    return Ended(
        status=status,
        exit_code=record.exit_code,
        reason=plain(record.reason or "")[:MOST_REASON],
        digest=None if record.digest is None else plain(record.digest)[:MOST_REASON],
        step=record.steps,
        at=written_at,  # its launcher has written it last of all
    )


def _last_words(run_dir: Path) -> str:
    log = run_dir / "launcher.log"
    try:
        return last_line(log) if log.stat().st_size else ""
    except OSError:
        return ""


def write_order(order: LaunchOrder) -> Path:
    """Write an order's file."""
    path = Path(order.job_dir) / f"launch-{order.incarnation}.json"
    hand(path, order)
    return path


def read_order(path: Path) -> LaunchOrder:
    """Read an order's file."""
    return read_handed(path, LaunchOrder, what="job to start", writer="a fleet")


def sweep(run_dir: Path) -> None:
    """End whatever still runs of a run whose launcher is gone, makers before what they make.

    They end by themselves, unless somebody has stopped them; what is started next may rely on it.
    """
    try:
        own = run_dir.stat().st_uid
    except OSError:
        return
    folders = list((run_dir / "agents").glob("*"))
    _end(own, _agents(run_dir))
    _end(own, [pid for folder in folders if (pid := read_mark(folder / "nursery.pid"))])
    _end(own, [pid for folder in folders for pid in read_marks(folder).values()])


def _agents(run_dir: Path) -> list[int]:
    files = {bytes(path) for path in (run_dir / "agents").glob("*/agent.json")}
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if files.intersection(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def _end(own: int, pids: Iterable[int]) -> None:
    waited: list[int] = []
    for pid in pids:
        try:
            # A folder's owner may write anything into it, but gives us power over nobody else's processes.
            if Path(f"/proc/{pid}").stat().st_uid != own:
                continue
            waited.append(os.pidfd_open(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        kill_group(pid)
    for ended in waited:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll(ENDS_S * 1000)
        os.close(ended)
