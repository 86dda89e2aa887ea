"""One incarnation under observation: its launcher, its folder, and everything that is known of it.

Nothing here waits or polls by itself: the fleet looks at every running incarnation a few times a second, and the end of
a launcher is told by the kernel.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from melodeon.backends.devices import SlotMap
from melodeon.backends.fleet_folder import Owner, claim, ended_of, owner_of, read_order, sweep
from melodeon.backends.fleet_progress import Progress
from melodeon.backends.fleet_values import Ended, LaunchOrder, Seen
from melodeon.backends.launcher import capacity_of
from melodeon.backends.tail import Tail
from melodeon.coord.marks import last_line
from melodeon.coord.registry import Entry
from melodeon.core.errors import UsageError

SILENT_S = 20.0
"""Agents that have not answered for this long need somebody to look."""
IDLE_S = 600.0
"""So does a job that has not made a step for this long."""


@dataclass(slots=True, eq=False)
class _Condition:
    """Something that shall hold, looked at when there is news."""

    is_true: Callable[[], bool]
    held: asyncio.Event = field(default_factory=asyncio.Event)


class Watched:
    """One incarnation. Its events are those of the fleet's loop."""

    def __init__(self, order: LaunchOrder, *, on_end: Callable[["Watched"], None]) -> None:
        self.order = order
        self.run_dir = Path(order.run_dir)
        self.devices = SlotMap(capacity_of(order), order.cuda)
        self.cuda = self.devices.uses_cuda(order.slots)
        self.progress = Progress(self.devices, cuda=self.cuda)
        self.ended: Ended | None = None
        self.registered, self.begun, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        """Its agents can be asked; it trains, or has; nothing of it runs any more."""
        self.entry: Entry | None = None
        self.shown: Seen | None = None
        """What was told last, and when."""
        self.shown_at = 0.0
        self.asked_at = 0.0
        self._on_end = on_end
        self._events = Tail(self.run_dir / "events.jsonl", self.progress.lines)
        self._owner: Owner | None = None
        self._spawned = 0
        self._pidfd = -1
        self._burying: asyncio.Task[None] | None = None
        self._heard_at = self._moved_at = time.monotonic()
        self._step = -1
        self._reading = asyncio.Lock()
        """Held while a thread reads its events."""
        self._trouble = ""
        self._awaited: list[_Condition] = []

    # -- the launcher --------------------------------------------------------------------------------------------------

    def spawned(self, pid: int) -> None:
        """A launcher was started for it by this process."""
        self._spawned = pid
        self._follow(pid)

    def find(self) -> bool:
        """Look for whoever made the folder; False: nobody has."""
        self._owner = owner_of(self.run_dir)
        if self._owner is None:
            return False
        if self._owner.is_alive and self._owner.pid == self._spawned:
            return True
        if not (self._owner.is_alive and self._follow(self._owner.pid)):
            self._gone()
        return True

    @property
    def is_followed(self) -> bool:
        """A launcher of it runs."""
        return self._pidfd >= 0

    def signal(self, number: int) -> None:
        """Tell the launcher, if there is one."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if self._pidfd >= 0 and (self._spawned or self._is_own()):
                signal.pidfd_send_signal(self._pidfd, number)

    def _is_own(self) -> bool:
        """Who it is was read in a folder of the job's user, which gives no power over the processes of others."""
        assert self._owner is not None
        return Path(f"/proc/{self._owner.pid}").stat().st_uid == self.run_dir.stat().st_uid

    def close(self) -> None:
        """Stop looking; it goes on."""
        self._let_go()
        if self._burying is not None:
            self._burying.cancel()

    def _follow(self, pid: int) -> bool:
        self._let_go()
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        asyncio.get_running_loop().add_reader(self._pidfd, self._gone)
        return True

    def _let_go(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _gone(self) -> None:
        """The launcher that was followed has ended, or there was none to follow."""
        self._let_go()
        if self._burying is None:
            self._burying = asyncio.create_task(self._bury())

    async def _bury(self) -> None:
        """Find out how it ended; when that is told, nothing of it runs any more."""
        code = _reap(self._spawned)
        spawned, self._spawned = self._spawned, 0
        if spawned and owner_of(self.run_dir) is None and claim(self.run_dir):
            ended = self._stillborn(code)
        else:
            owner = owner_of(self.run_dir)
            if owner is not None and owner.is_alive and self._follow(owner.pid):
                self._owner, self._burying = owner, None  # ours came second
                return
            ended = ended_of(self.run_dir)
            if ended.status == "lost":
                await asyncio.to_thread(sweep, self.run_dir)
            await self._read_all()
        if ended.step is not None:
            self.progress.step = max(self.progress.step, ended.step)
        else:
            ended = msgspec.structs.replace(ended, step=self.progress.step or None)
        self.ended = ended
        self.over.set()
        self._on_end(self)

    def _stillborn(self, code: int | None) -> Ended:
        """Its launcher has ended without making the folder: it will do so again, unless it was killed."""
        if self._owner is not None:
            return Ended(status="lost", reason=f"its folder {self.run_dir} was removed while it ran")
        log = self.run_dir.with_name(f"launch-{self.order.incarnation}.log")
        said = last_line(log).removeprefix("error: ") if log.exists() else ""
        if code is None or code < 0:
            return Ended(status="lost", reason=f"its launcher was killed before it began: {said}".rstrip(": "))
        return Ended(
            status="failed", exit_code=code, reason=f"its launcher could not begin: {said or f'it ended with {code}'}"
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read what is new in its files."""
        if self._owner is None or not self._owner.pid:
            self._owner = owner_of(self.run_dir)
        if self.entry is None and self._owner is not None and self._owner.entry:
            self.entry = _read_entry(Path(self._owner.entry), self._owner)
            if self.entry is not None:
                self.registered.set()
        if not self._reading.locked():
            try:
                self._events.read()
                self._trouble = ""
            except OSError as error:
                self._trouble = f"its events cannot be read ({error.strerror}): see {self.run_dir}"
        for condition in [condition for condition in self._awaited if condition.is_true()]:
            self._awaited.remove(condition)
            condition.held.set()
        if self.progress.training:
            self.begun.set()
        if self.progress.step != self._step:
            self._step, self._moved_at = self.progress.step, time.monotonic()

    async def catch_up(self) -> None:
        """Read its files for the first time: there may be much in them."""
        await self._read_all()
        self.look()

    async def until_only_on(self, slots: set[int]) -> None:
        """Until none of its processes is on another slot of its agent."""
        condition = _Condition(lambda: set(self.progress.slots.values()) <= slots)
        self._awaited.append(condition)
        self.look()
        try:
            await condition.held.wait()
        finally:
            if condition in self._awaited:
                self._awaited.remove(condition)

    async def _read_all(self) -> None:
        """Read in a thread, once nobody else does."""
        async with self._reading:
            with contextlib.suppress(OSError):  # the next look tells
                await asyncio.to_thread(self._events.read)

    def heard(self, values: dict[str, object]) -> None:
        """Its master has answered."""
        self._heard_at = time.monotonic()
        self.progress.status(values)

    def rest(self) -> None:
        """It is not asked now, so its silence means nothing."""
        self._heard_at = time.monotonic()

    def seen(self) -> Seen:
        """What is."""
        return self.progress.seen(self.order.job, self.order.incarnation, ended=self.ended, stuck=self._stuck())

    def _stuck(self) -> str:
        if self.ended is not None or self._trouble:
            return "" if self.ended is not None else self._trouble
        if not self.progress.training:
            return ""
        now = time.monotonic()
        if now - self._heard_at > SILENT_S:
            return f"its agents have not answered for more than {SILENT_S:.0f} s: see {self.run_dir}/agents"
        if now - self._moved_at > IDLE_S:
            return f"it has made no step for more than {IDLE_S / 60:.0f} minutes: see {self.run_dir}"
        return ""


def order_of(job_dir: Path, job: str, incarnation: int) -> LaunchOrder:
    """The order of an incarnation that was started before; a bare one if it never got that far."""
    bare = LaunchOrder(job=job, incarnation=incarnation, job_dir=str(job_dir), argv=(), slots={"node000": (0,)})
    try:
        return msgspec.structs.replace(read_order(job_dir / f"launch-{incarnation}.json"), job_dir=str(job_dir))
    except UsageError:
        return bare


def _read_entry(path: Path, owner: Owner) -> Entry | None:
    """Where its agents are, once they are."""
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None
    return entry if entry.pid == owner.pid else None


def _reap(pid: int) -> int | None:
    """The exit code of our child, negative for a signal; None if it was not ours to wait for."""
    if not pid:
        return None
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None
