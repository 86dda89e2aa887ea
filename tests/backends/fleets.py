"""A fleet of real jobs in a test, and somebody who watches it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from melodeon.backends.fleet import Fleet
from melodeon.backends.fleet_values import Ended, LaunchOrder, Seen
from melodeon.coord.marks import started
from tests.coord.running import PRELOAD, SCRIPT

TRAIN = str(Path(__file__).parents[1] / "live" / "train.py")
LIMIT_S = 60.0


def scripted(folder: Path, *args: str, steps: int = 100_000, **fields: Any) -> LaunchOrder:
    """A job whose workers count instead of training: it begins within a second."""
    return order(folder, SCRIPT, str(steps), *args, **{"preload": PRELOAD, **fields})


def training(folder: Path, *args: str, **fields: Any) -> LaunchOrder:
    """A job that trains with torch; its script asks for no checkpoints."""
    return order(folder, TRAIN, *args, **fields)


def order(folder: Path, *argv: str, job: str = "job-1", **fields: Any) -> LaunchOrder:
    full: dict[str, Any] = {
        "incarnation": 1,
        "slots": {"node000": (0,)},
        "capacity": {"node000": 4},
        "restarts": 0,
        "workdir": str(folder),
        "job_dir": str(folder / job),
        **fields,
    }
    return LaunchOrder(job=job, argv=argv, **full)


class Watcher:
    """A fleet, and the newest that was seen of each of its jobs."""

    def __init__(self, **options: Any) -> None:
        self.fleet = Fleet(**options)
        self.all: list[Seen] = []
        self.newest: dict[tuple[str, int], Seen] = {}
        self._news = asyncio.Condition()

    async def watch(self) -> None:
        async for seen in self.fleet.observe():
            async with self._news:
                self.all.append(seen)
                self.newest[seen.job, seen.incarnation] = seen
                self._news.notify_all()

    async def until(self, true: Callable[[Seen], object], job: str = "job-1", incarnation: int = 1) -> Seen:
        """What is seen of a job, once something holds."""
        key = (job, incarnation)

        def settled() -> bool:
            seen = self.newest.get(key)
            return seen is not None and bool(true(seen) or seen.ended)

        async with self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIMIT_S):
                    await self._news.wait_for(settled)
        seen = self.newest.get(key)
        assert seen is not None, "nothing was seen of it"
        assert true(seen), f"it has not happened: {seen}"
        return seen

    async def trains(self, order: LaunchOrder, steps: int = 0) -> Seen:
        """Start a job and wait until it has made so many steps."""
        await self.fleet.launch(order)
        return await self.until(
            lambda seen: seen.ended or (seen.training and seen.step >= steps), order.job, order.incarnation
        )

    async def ended(self, job: str = "job-1", incarnation: int = 1) -> Ended:
        seen = await self.until(lambda seen: seen.ended, job, incarnation)
        assert seen.ended is not None
        assert not seen.alive
        assert not seen.slots
        return seen.ended


@contextlib.asynccontextmanager
async def watching(**options: Any) -> AsyncIterator[Watcher]:
    """`async with watching() as watcher:` ends with no job left."""
    watcher = Watcher(**options)
    task = asyncio.create_task(watcher.watch())
    try:
        yield watcher
    finally:
        for (job, incarnation), watched in list(watcher.fleet._jobs.items()):
            if watched.ended is None:
                await watcher.fleet.kill(job, incarnation)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await watcher.fleet.close()


def processes(folder: Path) -> dict[int, str]:
    """Everything that runs and names something in this folder, was forked by such a process, or writes there."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid, line = int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_of = str(folder) in line or (path / "fd" / "1").readlink().is_relative_to(folder)
            if is_of and pid != os.getpid() and started(pid) is not None:
                found[pid] = line
    return found
