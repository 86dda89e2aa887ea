"""A controller on a clock that a test moves: a real store, the fake fleet, one turn after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from melodeon.backends.fleet_fake import FakeFleet
from melodeon.control.controller import Controller
from melodeon.control.desk import Wish
from melodeon.control.store import Store
from melodeon.core.cluster import Cluster
from melodeon.core.overhead import Overheads
from melodeon.core.service import JobInfo
from melodeon.core.spec import Spec, read_spec

T = TypeVar("T")
CURVE = {1: 10.0, 2: 19.0, 4: 35.0, 8: 60.0}


def spec(name: str = "cnn", steps: int | None = 1000, **fields: Any) -> Spec:
    raw: dict[str, Any] = {"name": name, "run": "train.py", "virtual_workers": 8, "workers": "1-8", "workdir": "/"}
    if steps is not None:
        raw["steps"] = steps
    return read_spec(raw | fields)


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Stage:
    """A cluster to play on. `restart()` is a controller that died and another that came."""

    def __init__(
        self,
        folder: Path,
        *,
        cluster: str = "1x8:cpu",
        policy: str = "elasticflow",
        margin: float = 0.1,
        overheads: Overheads | None = None,
        **options: Any,
    ) -> None:
        self.folder, self.clock = folder, Clock()
        self.overheads = overheads or Overheads.none()
        self.fleet = FakeFleet(self.clock, every_s=None, overheads=self.overheads, curves={"*": CURVE})
        self._made = {"policy": policy, "margin": margin, **options}
        self._cluster = Cluster.parse(cluster)
        self._asked = asyncio.Event()
        self.controller = self._make()

    def _make(self) -> Controller:
        made = Controller(
            Store(self.folder / "cluster.db", snapshot_every=25),
            self.fleet,
            self._cluster,
            state_dir=self.folder,
            overheads=self.overheads,
            clock=self.clock,
            **self._made,
        )
        ask = made.engine.ask

        async def heard(wish: Wish) -> object:
            self._asked.set()
            return await ask(wish)

        made.engine.ask = heard  # type: ignore[method-assign]
        return made

    async def __aenter__(self) -> "Stage":
        await self.controller.engine.begin()
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.controller.close()

    async def restart(self, *, cluster: str | None = None, same_fleet: bool = True) -> None:
        """Nothing is said goodbye to: the next controller finds what is on disk."""
        engine = self.controller.engine
        await engine._hands.close()
        engine._writer.shutdown(wait=True)
        engine.store.close()
        if not same_fleet:
            curves = self.fleet.curves
            self.fleet = FakeFleet(self.clock, every_s=None, overheads=self.overheads, curves=curves)
        if cluster is not None:
            self._cluster = Cluster.parse(cluster)
        self.controller = self._make()
        await self.controller.engine.begin()
        await self.settle()

    async def settle(self) -> None:
        """Turn until nothing more happens at this moment."""
        engine = self.controller.engine
        for _ in range(50):
            for seen in self.fleet.news():
                engine.report(seen)
            if not engine._stirred.is_set():
                return
            await engine.turn()
            await engine.settle()
        raise AssertionError("the controller does not come to rest")

    async def until(self, at: float) -> None:
        """Let time pass, stopping wherever something is due."""
        engine = self.controller.engine
        for _ in range(10_000):
            moments = [m for m in (self.fleet.due(), engine.wake_at, engine._deadline_at) if m is not None]
            moment = min([m for m in moments if m > self.clock.now], default=at)
            if moment >= at:
                break
            self.clock.now = moment
            await self._look()
        self.clock.now = at
        await self._look()

    async def after(self, seconds: float) -> None:
        await self.until(self.clock.now + seconds)

    async def _look(self) -> None:
        self.fleet.look()
        self.controller.engine._stirred.set()
        await self.settle()

    async def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have a wish answered, and what follows from it done."""
        task = asyncio.ensure_future(coroutine)
        engine = self.controller.engine
        self.fleet.look()
        while not task.done():
            while engine._wishes:
                for seen in self.fleet.news():
                    engine.report(seen)
                await engine.turn()
            self._asked.clear()
            asked = asyncio.ensure_future(self._asked.wait())
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
        await engine.settle()
        await self.settle()
        return task.result()

    async def submit(self, name: str = "cnn", steps: int | None = 1000, user: str = "ada", **fields: Any) -> JobInfo:
        """Submit a job with a known curve, unless told otherwise."""
        fields = {"curve": CURVE} | fields
        if fields["curve"] is None:
            del fields["curve"]
        return (await self.ask(self.controller.submit(spec(name, steps, **fields), user=user))).job

    def phase(self, job: str) -> str:
        return self.controller.job(job).phase.value

    def workers(self) -> dict[str, int]:
        return {job.id: job.workers for job in self.controller.jobs() if job.workers}


def play(folder: Path, act: Callable[[Stage], Awaitable[None]], **options: object) -> None:
    """Do something on a stage of its own."""

    async def main() -> None:
        async with Stage(folder, **options) as stage:  # type: ignore[arg-type]
            await act(stage)

    asyncio.run(main())
