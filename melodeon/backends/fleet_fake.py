"""A fleet without processes: every job's progress is a function of the clock, so thousands train in no time.

What it knows of an incarnation is in a file in the run's folder, as far as a controller could tell the same as with
real jobs: they go on while nobody looks, and are found again by whoever looks next. Ships with the seam, for the tests
of the controller, of the API and of the pages.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from melodeon.backends.fleet_values import Ended, LaunchOrder, Seen, Slots
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.overhead import Overheads
from melodeon.core.service import LogChunk

RATE = 10.0
STEPS_PER_EPOCH = 10
LINE = 64
"""Bytes of one line of a fake log, so that any piece of it can be made without the rest."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation: where it was when something last changed, and where it goes from there."""

    order: LaunchOrder
    began: float
    at: float
    step: float
    resumes: float
    slots: dict[str, tuple[int, ...]]
    rate: float
    total: int
    pause_s: float = 0.0
    views: int = 1
    ended: Ended | None = None
    ended_at: float | None = None

    def step_at(self, now: float) -> float:
        """How far it is at a moment."""
        if self.ended is not None:
            return self.step
        return min(float(self.total), self.step + self.rate * max(0.0, now - max(self.resumes, self.at)))

    @property
    def done_at(self) -> float:
        """When it comes to its end if nothing changes."""
        return max(self.resumes, self.at) + (self.total - self.step) / self.rate


class FakeFleet:
    """Plays jobs forward. `curves` gives steps a second by workers for a name, an id or `*`; other jobs scale well."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        curves: Mapping[str, Mapping[int, float]] | None = None,
        overheads: Overheads | None = None,
        every_s: float | None = 0.5,
        virtual_workers: int | None = None,
    ) -> None:
        self.curves: dict[str, Mapping[int, float]] = dict(curves or {})
        self.calls: list[tuple[str, str, int]] = []
        """(what, job, incarnation) of every call that changed something."""
        self._clock, self._overheads, self._every_s = clock, overheads or Overheads.none(), every_s
        """`every_s=None`: only `look()` lets anybody see anything; for tests that move the clock by hand."""
        self._virtual_workers = virtual_workers
        self._jobs: dict[tuple[str, int], Played] = {}
        self._told: set[tuple[str, int]] = set()
        """Ends that were told."""
        self._news: asyncio.Queue[Seen] = asyncio.Queue()
        self._poked = asyncio.Event()

    # --- what a controller calls ---

    async def launch(self, order: LaunchOrder) -> None:
        """Begin at once, from where the job's last incarnation stopped."""
        key = (order.job, order.incarnation)
        folder = Path(order.run_dir)
        if key in self._jobs:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            return  # somebody owns it already
        now = self._clock()
        before = self._last_step(Path(order.job_dir), order)
        count = sum(len(slots) for slots in order.slots.values())
        pause_s = self._overheads.pause_s("", count, fresh=before == 0)
        played = Played(
            order=order,
            began=now,
            at=now,
            step=float(before),
            resumes=now + pause_s,
            slots=order.slots,
            rate=self.rate(order.job, count),
            total=order.steps or (order.epochs or 1) * STEPS_PER_EPOCH,
            pause_s=pause_s,
        )
        self._keep(key, played)
        self.calls.append(("launch", *key))
        self._say(key)

    async def adopt(self, job_dir: Path, job: str, incarnation: int) -> Seen:
        """Read its file again; no folder: claim it."""
        folder = job_dir / f"{job}.{incarnation}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            pass
        else:
            (folder / "claimed").touch()
        with suppress(FileNotFoundError):
            self._jobs[(job, incarnation)] = msgspec.json.decode((folder / "fake.json").read_bytes(), type=Played)
            return self.seen(job, incarnation)
        status = Ended(status="unstarted", reason="it was never started")
        return Seen(job=job, incarnation=incarnation, alive=False, ended=status)

    async def place(self, job: str, incarnation: int, slots: Slots) -> None:
        """Go on there after a pause."""
        now, played = self._running(job, incarnation)
        if not slots or not all(slots.values()):
            raise UsageError(f"job {job} cannot be placed on {dict(slots)}: name at least one device")
        if played.slots == dict(slots):
            return
        count = sum(len(indices) for indices in slots.values())
        pause_s = self._overheads.pause_s("", count)
        changed = replace(
            played,
            at=now,
            step=played.step_at(now),
            slots=dict(slots),
            resumes=now + pause_s,
            rate=self.rate(job, count),
            pause_s=played.pause_s + pause_s,
            views=played.views + 1,
        )
        self._keep((job, incarnation), changed)
        self.calls.append(("place", job, incarnation))
        self._say((job, incarnation))

    async def stop(self, job: str, incarnation: int) -> None:
        """End with its state kept."""
        self.end(job, incarnation, Ended(status="stopped", exit_code=0, reason="asked to stop"))

    async def kill(self, job: str, incarnation: int) -> None:
        """End at once."""
        self.end(job, incarnation, Ended(status="lost", exit_code=-9, reason="killed"))

    async def profile(self, job: str, incarnation: int, smallest: int, largest: int) -> dict[int, float]:
        """The true curve, within the devices that it has."""
        _, played = self._running(job, incarnation)
        held = sum(len(indices) for indices in played.slots.values())
        sizes = [smallest]
        while sizes[-1] * 2 <= min(largest, held):
            sizes.append(sizes[-1] * 2)
        self.calls.append(("profile", job, incarnation))
        return {size: self.rate(job, size) for size in sizes}

    async def observe(self) -> AsyncIterator[Seen]:
        """Everything that changes, and every running job at every look."""
        while True:
            for seen in self.news():
                yield seen
            self._poked.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._poked.wait()
            if self._every_s is not None:
                self.look()

    def logs(self, job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
        """One line a step."""
        name = job_dir.name
        keys = sorted(key for key in self._jobs if key[0] == name)
        newest = self._jobs[keys[-1]] if keys else None
        last = int(newest.step_at(self._clock())) if newest else 0
        first = int(start or 0)
        upto = min(last, first + max(1, limit // LINE))
        lines = (f"step {step} loss {loss(step):.4f} worker {worker or 0}" for step in range(first + 1, upto + 1))
        over = newest is not None and newest.ended is not None and newest.ended.status != "stopped" and upto == last
        return LogChunk(text="".join(f"{line:<{LINE - 1}}\n" for line in lines), next=str(upto), over=over)

    async def close(self) -> None:
        """Nothing is held."""

    # --- what a test calls ---

    def rate(self, job: str, workers: int) -> float:
        """Steps a second."""
        known = self.curves.get(job) or self.curves.get(job.rpartition("-")[0]) or self.curves.get("*")
        if known is None:
            return float(RATE * workers**0.9)
        if workers in known:
            return known[workers]
        return float(max(rate for size, rate in known.items() if size <= workers or size == min(known)))

    def seen(self, job: str, incarnation: int) -> Seen:
        """What is, of one incarnation."""
        now = self._clock()
        played = self._finished((job, incarnation), now)
        step = int(played.step_at(now) + 1e-6)
        count = sum(len(indices) for indices in played.slots.values())
        training = played.ended is None and now >= played.resumes
        return Seen(
            job=job,
            incarnation=incarnation,
            alive=played.ended is None,
            training=training,
            ended=played.ended,
            slots={} if played.ended else played.slots,
            step=step,
            total_steps=played.total,
            steps_per_epoch=STEPS_PER_EPOCH if played.order.epochs else None,
            virtual_workers=self._virtual_workers,
            rates={count: played.rate} if training and now - max(played.resumes, played.at) > 1.0 else {},
            metrics={"loss": loss(step)} if step else {},
            pause_s=played.pause_s,
            views=played.views,
        )

    def news(self) -> list[Seen]:
        """What was said and not heard yet, for a test that listens itself."""
        found = []
        while not self._news.empty():
            found.append(self._news.get_nowait())
        return found

    def look(self) -> None:
        """Say how every job is that runs or has just ended."""
        for key in list(self._jobs):
            if key not in self._told:
                self._say(key)

    def end(self, job: str, incarnation: int, how: Ended) -> None:
        """Have an incarnation end, by itself or by what a test does to it."""
        now = self._clock()
        key = (job, incarnation)
        if key not in self._jobs:
            raise NotFound(f"incarnation {incarnation} of job {job} is not here")
        played = self._finished(key, now)
        if played.ended is None:
            step = int(played.step_at(now) + 1e-6)
            how = replace(how, step=step)
            self._keep(key, replace(played, at=now, step=float(step), ended=how, ended_at=now))
            self.calls.append((how.status, *key))
        self._say(key)

    def due(self) -> float | None:
        """When the next job comes to its end, or out of its pause."""
        now = self._clock()
        running = [played for key, played in self._jobs.items() if played.ended is None]
        moments = [p.done_at for p in running] + [p.resumes for p in running if p.resumes > now]
        return min(moments, default=None)

    # --- inside ---

    def _running(self, job: str, incarnation: int) -> tuple[float, Played]:
        now = self._clock()
        played = self._finished((job, incarnation), now) if (job, incarnation) in self._jobs else None
        if played is None or played.ended is not None:
            raise NotFound(f"incarnation {incarnation} of job {job} does not run")
        return now, played

    def _finished(self, key: tuple[str, int], now: float) -> Played:
        """The incarnation, ended if it has trained to its end by now."""
        played = self._jobs[key]
        if played.ended is None and now >= played.done_at - 1e-9:
            digest = hashlib.sha256(f"{key[0]} {played.total}".encode()).hexdigest()
            ended_at = min(now, played.done_at)
            ended = Ended(status="done", exit_code=0, digest=digest, step=played.total, at=ended_at)
            played = replace(played, at=now, step=float(played.total), ended=ended, ended_at=ended_at)
            self._keep(key, played)
        return played

    def _keep(self, key: tuple[str, int], played: Played) -> None:
        self._jobs[key] = played
        folder = Path(played.order.run_dir)
        temporary = folder / ".fake.json"
        temporary.write_bytes(msgspec.json.encode(played))
        temporary.replace(folder / "fake.json")

    def _last_step(self, job_dir: Path, order: LaunchOrder) -> int:
        steps = [0]
        for number in range(1, order.incarnation):
            with suppress(FileNotFoundError):
                raw = (job_dir / f"{order.job}.{number}" / "fake.json").read_bytes()
                steps.append(int(msgspec.json.decode(raw, type=Played).step))
        return max(steps)

    def _say(self, key: tuple[str, int]) -> None:
        seen = self.seen(*key)
        if seen.ended is not None:
            self._told.add(key)
        self._news.put_nowait(seen)
        self._poked.set()

    def _patience_s(self) -> float | None:
        if self._every_s is None:
            return None
        due = self.due()
        soon = self._every_s if due is None else min(self._every_s, max(0.0, due - self._clock()) + 1e-3)
        return soon if due is not None else None


def loss(step: int) -> float:
    """A curve that falls."""
    return 1.0 / (1.0 + step / 100)
