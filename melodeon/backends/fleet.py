"""Jobs on this machine, side by side: each has a launcher of its own that needs nobody, and the fleet watches them all.

    launch ---> launcher (a session of its own) ---> agents ---> workers
    adopt  ---> the folders of launchers that an earlier controller started
    observe <-- a few looks a second at the events of those that run; the kernel tells of their ends

Everything runs in the caller's event loop. A job that has ended costs nothing; one that runs costs a look at a file's
size and, while it trains, a question a second.
"""

import asyncio
import contextlib
import os
import signal
import sys
import sysconfig
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from melodeon.backends.devices import Devices
from melodeon.backends.fleet_ask import ask
from melodeon.backends.fleet_folder import claim, write_order
from melodeon.backends.fleet_job import Watched, order_of
from melodeon.backends.fleet_logs import read_logs
from melodeon.backends.fleet_values import LaunchOrder, Seen, Slots
from melodeon.backends.launcher import AGENT
from melodeon.backends.warmth import Warmth
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError
from melodeon.core.service import LogChunk

LOOK_S = 0.25
"""How often the files of running jobs are looked at."""
ASK_S = 1.0
"""How often a job that trains is asked how it goes, and told of."""
ANSWER_S = 5.0
"""How long a job may take to say how it goes."""
MOST_ASKED = 8
"""Jobs that are asked at one time."""
LEAVE_S = 40.0
"""How long workers that must leave may take until they have: the master kills them before."""
ENDED = 256
"""Incarnations that have ended and are still at hand; what became of older ones is read in their folders."""
HURRY_S = 10.0
"""How long a launcher may take to end everything at once."""

T = TypeVar("T")
Key = tuple[str, int]


class Fleet:
    """The jobs of one controller on this machine; see `FleetLike`."""

    def __init__(self, devices: Devices | None = None, *, run_as: str = "", state_dir: Path | None = None) -> None:
        """With a `state_dir` jobs start at once: a process that has imported torch is kept, and its log is there."""
        self._cuda = dict(devices.cuda) if devices else {}
        self._warmth = Warmth(_environment(), state_dir / "zygote.log", user=run_as) if state_dir else None
        self._run_as = run_as
        self._jobs: dict[Key, Watched] = {}
        self._running: dict[Key, Watched] = {}
        self._ended: deque[Key] = deque()
        self._observers: set[_Observer] = set()
        self._watching: asyncio.Task[None] | None = None
        self._asking: dict[Key, asyncio.Task[None]] = {}
        self._lines = asyncio.Semaphore(MOST_ASKED)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def launch(self, order: LaunchOrder) -> None:
        """Start an incarnation; one that was started already is left alone."""
        key = (order.job, order.incarnation)
        if key in self._jobs:
            return
        order = msgspec.structs.replace(
            order,
            job_dir=str(Path(order.job_dir).absolute()),
            workdir=str(Path(order.workdir).absolute()),
            cuda=order.cuda or self._cuda,
            run_as=order.run_as or self._run_as,
            zygote=self._zygote(),
        )
        job = self._add(Watched(order, on_end=self._on_end))
        try:
            if job.run_dir.exists():
                job.find()
                await job.catch_up()
            else:
                path = await asyncio.to_thread(write_order, order)
                job.spawned(_spawn(path))
        except OSError as error:
            self._drop(job)
            raise Unreachable(
                f"job {order.name} cannot be started now ({error.strerror or error}): see whether {order.job_dir} can "
                "be written to"
            ) from error
        self._show(job)

    async def adopt(self, job_dir: Path, job: str, incarnation: int) -> Seen:
        """What has become of an incarnation that may have been started; one that was not is claimed (`unstarted`)."""
        known = self._jobs.get((job, incarnation))
        if known is not None:
            return known.seen()
        order = order_of(job_dir.absolute(), job, incarnation)
        found = self._add(Watched(order, on_end=self._on_end))
        try:
            if not found.run_dir.exists():
                await asyncio.to_thread(_claim, found.run_dir)
        except OSError as error:
            self._drop(found)
            raise Unreachable(f"{found.run_dir} cannot be claimed now ({error.strerror}): try again") from error
        found.find()
        await found.catch_up()
        if not found.is_followed:
            await found.over.wait()
        self._show(found)
        return found.seen()

    # -- changing ------------------------------------------------------------------------------------------------------

    async def place(self, job: str, incarnation: int, slots: Slots) -> None:
        """Have workers on exactly these devices; returns when it is so, or raises.

        Then nobody is on the devices that it has left: others may use them.
        """
        found = self._find(job, incarnation)
        if found.devices.uses_cuda(slots) != found.cuda:
            raise MelodeonError(
                f"job {job} runs on {'CUDA' if found.cuda else 'CPU'} devices and cannot move to {', '.join(slots)}: "
                "stop it, and start it there"
            )
        wanted = found.devices.to_agent(slots)
        await self._ask(found, "place", {"slots": {AGENT: wanted}})
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._unless_over(found, "place", found.until_only_on(set(wanted)))
        except TimeoutError:
            raise Unreachable(f"job {job} has not left its other devices within {LEAVE_S:.0f} s: try again") from None

    async def stop(self, job: str, incarnation: int) -> None:
        """Write a checkpoint and end; `Seen.ended` follows."""
        found = self._find(job, incarnation, ended=True)
        with contextlib.suppress(NotFound, UsageError):  # it has ended by itself, and says so or not
            await self._ask(found, "stop")

    async def kill(self, job: str, incarnation: int) -> None:
        """End at once, whatever is lost; `Seen.ended` follows."""
        found = self._find(job, incarnation, ended=True)
        # Two signals tell the launcher that somebody is in a hurry; two of one kind could arrive as one.
        for number in (signal.SIGTERM, signal.SIGINT):
            found.signal(number)
        try:
            async with asyncio.timeout(HURRY_S):
                await found.over.wait()
        except TimeoutError:
            found.signal(signal.SIGKILL)
            await found.over.wait()

    async def profile(self, job: str, incarnation: int, smallest: int, largest: int) -> dict[int, float]:
        """Measure steps a second at the sizes smallest, twice that, ... within the devices that it was last given.

        What another controller has asked for before it died is waited for, not asked for again.
        """
        found = self._find(job, incarnation)
        await self._unless_over(found, "profile", found.begun.wait())
        sizes = {"min": smallest, "max": largest}
        try:
            values = await self._ask(found, "profile", sizes, wish_id=f"profile-{smallest}-{largest}")
        except UsageError:  # perhaps an earlier one that could not be completed
            values = await self._ask(found, "profile", sizes)
        return msgspec.convert(values.get("rates", {}), dict[int, float], strict=False)

    # -- watching ------------------------------------------------------------------------------------------------------

    async def observe(self) -> AsyncIterator[Seen]:
        """Whatever changes, of every incarnation that was launched or adopted; while training at least every second.

        Begins with all that are known. Of one who reads slowly nothing but the newest is kept.
        """
        self._zygote()  # now, so that the first job finds it ready
        observer = _Observer()
        for key, job in self._jobs.items():
            observer.put(key, job.seen())
        self._observers.add(observer)
        try:
            while True:
                for seen in await observer.take():
                    yield seen
        finally:
            self._observers.discard(observer)

    def logs(self, job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
        """A piece of a job's output over all incarnations, from an opaque mark; "" is the beginning."""
        return read_logs(job_dir, start, worker, limit)

    async def close(self) -> None:
        """Let go of everything; jobs go on."""
        if self._warmth is not None:
            self._warmth.close()
        tasks = [task for task in (self._watching, *self._asking.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in self._running.values():
            job.close()
        self._jobs, self._running = {}, {}

    async def _watch(self) -> None:
        while self._running:
            now = time.monotonic()
            for key, job in list(self._running.items()):
                job.look()
                self._ask_status(key, job, now)
                if job.ended is None:
                    self._show(job, at_least_s=ASK_S if job.progress.training else None)
            await asyncio.sleep(LOOK_S)

    def _ask_status(self, key: Key, job: Watched, now: float) -> None:
        if not job.progress.training or job.entry is None:
            job.rest()
        elif key not in self._asking and now - job.asked_at >= ASK_S:
            job.asked_at = now
            task = self._asking[key] = asyncio.create_task(self._hear(job))
            task.add_done_callback(lambda _: self._asking.pop(key, None))

    async def _hear(self, job: Watched) -> None:
        assert job.entry is not None
        async with self._lines:
            with contextlib.suppress(TimeoutError, MelodeonError):
                async with asyncio.timeout(ANSWER_S):
                    job.heard((await ask(job.entry.agents, "status")).values)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _zygote(self) -> str:
        try:
            return "" if self._warmth is None else self._warmth.name()
        except OSError:
            return ""  # jobs can do without

    def _add(self, job: Watched) -> Watched:
        key = (job.order.job, job.order.incarnation)
        self._jobs[key] = self._running[key] = job
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return job

    def _drop(self, job: Watched) -> None:
        key = (job.order.job, job.order.incarnation)
        self._jobs.pop(key, None)
        self._running.pop(key, None)

    def _find(self, job: str, incarnation: int, *, ended: bool = False) -> Watched:
        found = self._jobs.get((job, incarnation))
        if found is None or (found.ended is not None and not ended):
            what = "was never started here" if found is None else "has ended"
            raise NotFound(f"incarnation {incarnation} of job {job} {what}: nothing can be asked of it")
        return found

    async def _ask(
        self, job: Watched, what: str, values: dict[str, Any] | None = None, wish_id: str = ""
    ) -> dict[str, Any]:
        """Ask once its agents are there; if it ends meanwhile, NotFound."""
        await self._unless_over(job, what, job.registered.wait())
        if job.entry is None:
            raise Unreachable(f"job {job.order.name} has no agents that could be asked to {what}")
        try:
            return (await self._unless_over(job, what, ask(job.entry.agents, what, values, wish_id))).values
        except UsageError as refused:
            job.look()
            if job.progress.is_over:
                raise NotFound(str(refused)) from refused
            raise

    async def _unless_over(self, job: Watched, what: str, work: Coroutine[Any, Any, T]) -> T:
        doing, over = asyncio.ensure_future(work), asyncio.ensure_future(job.over.wait())
        try:
            await asyncio.wait({doing, over}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
        finally:
            doing.cancel()
            over.cancel()
        raise NotFound(f"job {job.order.name} ended before it answered {what!r}: its folder is {job.run_dir}")

    def _on_end(self, job: Watched) -> None:
        key = (job.order.job, job.order.incarnation)
        self._running.pop(key, None)
        self._show(job)
        self._ended.append(key)
        while len(self._ended) > ENDED:
            self._jobs.pop(self._ended.popleft(), None)

    def _show(self, job: Watched, *, at_least_s: float | None = None) -> None:
        """Tell observers what is, if it is news, or if the last news is so old."""
        seen, now = job.seen(), time.monotonic()
        if seen == job.shown and (at_least_s is None or now - job.shown_at < at_least_s):
            return
        job.shown, job.shown_at = seen, now
        for observer in self._observers:
            observer.put((job.order.job, job.order.incarnation), seen)


class _Observer:
    """The newest of every incarnation since somebody last looked."""

    def __init__(self) -> None:
        self._newest: dict[Key, Seen] = {}
        self._news = asyncio.Event()

    def put(self, key: Key, seen: Seen) -> None:
        self._newest[key] = seen
        self._news.set()

    async def take(self) -> list[Seen]:
        await self._news.wait()
        self._news.clear()
        newest, self._newest = self._newest, {}
        return list(newest.values())


def _claim(run_dir: Path) -> None:
    run_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    claim(run_dir)


def _spawn(path: Path) -> int:
    """Start a launcher that outlives this process; its words go to a log beside its order."""
    log = str(path.with_suffix(".log"))
    return os.posix_spawn(
        sys.executable,
        # -P: nothing is imported from the folder in which it happens to be started.
        [sys.executable, "-P", "-m", "melodeon.backends.launcher", str(path)],
        _environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
    )


def _environment() -> dict[str, str]:
    """A launcher's variables: the controller's own are not for jobs, since its token is among them."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("MELODEON_")}
    root = str(Path(__file__).parents[2])
    if root not in sysconfig.get_paths().values():
        # Run from its sources: jobs are started elsewhere, and must find them too.
        given = filter(None, found.get("PYTHONPATH", "").split(os.pathsep))
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *given]))
    return found
