"""One life of a controller of real jobs under load: it serves, and its users submit, cancel, edit and scale.

    python -m tests.control.killpoints_load < LIFE.json

Says on its output what is asked and what was acknowledged, line by line, until a named point kills it.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path

import msgspec

from melodeon.backends.devices import find_devices
from melodeon.backends.fleet import Fleet
from melodeon.control import hands
from melodeon.control.controller import Controller
from melodeon.control.store import Store
from melodeon.coord import failpoint
from melodeon.core.errors import MelodeonError
from melodeon.core.service import OVER, Phase
from melodeon.core.spec import read_spec
from tests.control.killpoints_jobs import (
    EDITED,
    ELASTIC,
    KINDS,
    PROMISED,
    Kind,
    Life,
    Op,
    Said,
    job_file,
    references,
)

DEVICES = 4
MOST = 3
"""Jobs that come and go at a time: two devices are for them."""
PATIENCE_S = 5.0
"""Users go on after this time even where nothing has happened."""
GRACE_S = 0.2
"""Where a life is about killing jobs that do not stop, few stop soon enough."""
FOCUS: dict[str, tuple[Kind, ...]] = {
    "launch": ("withdrawn", "short", "cancelled"),
    "profile": ("measured", "unmeasured"),
    "stop": ("cancelled", "edited"),
    "kill": ("cancelled", "withdrawn"),
    "skip": ("withdrawn",),
}
"""Kinds of jobs that bring about what a life is about."""


def say(said: Said) -> None:
    """One line for whoever keeps the books."""
    os.write(1, msgspec.json.encode(said) + b"\n")


class Load:
    """The users of a controller."""

    def __init__(self, controller: Controller, life: Life) -> None:
        self._controller, self._life = controller, life
        self._names, self._kinds = dict(life.names), dict(life.kinds)
        self._cancelled = set(life.cancelled)

    async def play(self) -> None:
        """Say again what was not answered, then keep the controller busy, or bring everything to its end."""
        for op in self._life.pending:
            await self._ask(op)
        for number in (ELASTIC, PROMISED):
            if number not in self._names:
                await self._ask(Op("submit", number))
        if self._life.last:
            await self._finish()
        else:
            await asyncio.gather(self._come_and_go(), self._change())

    # --- users ---

    async def _finish(self) -> None:
        for number in self._endless():
            await self._ask(Op("cancel", number))
        live = self._controller.engine
        await self._until(lambda: all(self._phase(number) in OVER for number in self._names), None)
        await self._until(lambda: not any(job.alive for job in live.state.live.values()), None)

    async def _come_and_go(self) -> None:
        """Jobs that are submitted, and what becomes of them."""
        for number in self._endless():
            # Those that run are kept for a life that is about it; whoever left the others cannot cancel them any more.
            if self._life.focus in ("stop", "kill") or self._kinds[number] != "cancelled":
                await self._ask(Op("cancel", number))
        kinds = FOCUS.get(self._life.focus, KINDS)
        for number in count(self._life.next):
            await self._make_room()
            kind = kinds[(self._life.turn + number) % len(kinds)]
            if await self._ask(Op("submit", number, kind)):
                await self._part(number)

    async def _make_room(self) -> None:
        """Wait until there are not too many, and cancel the oldest that would run for ever, once it runs."""
        if len(self._unfinished()) >= MOST and (endless := self._endless()):
            await self._until(lambda: self._phase(endless[0]) in (Phase.RUNNING, *OVER))
            await self._ask(Op("cancel", endless[0]))
        await self._until(lambda: len(self._unfinished()) < MOST)

    async def _part(self, number: int) -> None:
        """What is done about a job when it is there."""
        match self._kinds[number]:
            case "unmeasured":
                await self._until(lambda: self._seen_training(number))
                await self._ask(Op("cancel", number))
            case "withdrawn":
                await self._ask(Op("cancel", number))
            case "edited":
                await self._ask(Op("edit", number, {"steps": EDITED}))
            case _:
                pass

    async def _change(self) -> None:
        """The long jobs, again and again otherwise."""
        for turn in count(self._life.turn):
            workers = (2, 1, None)[turn % 3]
            if not await self._ask(Op("scale", ELASTIC, workers)):
                return
            await self._until(self._placed)
            if turn % 2:
                await self._ask(Op("edit", PROMISED, {"deadline": f"{40 + turn}m"}))
            else:
                await self._ask(Op("edit", ELASTIC, {"priority": 2.0 + turn}))

    # --- asking and looking ---

    async def _ask(self, op: Op) -> bool:
        """Ask; returns whether it was done."""
        controller = self._controller
        say(Said("asked", op))
        try:
            match op.what:
                case "submit":
                    kind = msgspec.convert(op.value, Kind | None)
                    file = read_spec(job_file(op.number, kind))
                    answer = await controller.submit(file, user="ada", request_id=f"r{op.number}")
                    self._names[op.number] = answer.job.id
                    if kind is not None:
                        self._kinds[op.number] = kind
                case "cancel":
                    await controller.cancel(self._names[op.number], user="ada")
                    self._cancelled.add(op.number)
                case "edit":
                    assert isinstance(op.value, dict)
                    changed = await controller.edit(self._names[op.number], op.value, user="ada")
                    if changed.admitted is False:
                        raise MelodeonError(changed.text)
                case "scale":
                    assert op.value is None or isinstance(op.value, int)
                    await controller.scale(self._names[op.number], op.value, user="bob")
        except MelodeonError as error:
            say(Said("refused", op, str(error)))
            return False
        say(Said("told", op, self._names[op.number]))
        return True

    async def _until(self, true: Callable[[], bool], seconds: float | None = PATIENCE_S) -> None:
        """Wait for something, and no longer than people do."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    # Whatever comes from here on is seen below.
                    async with aclosing(self._controller.subscribe()) as events:  # type: ignore[type-var]
                        if true():
                            return
                        await anext(events)

    def _phase(self, number: int) -> Phase:
        return self._controller.job(self._names[number]).phase

    def _endless(self) -> list[int]:
        endless = ("cancelled", "withdrawn", "unmeasured")
        return [n for n, kind in sorted(self._kinds.items()) if kind in endless and n not in self._cancelled]

    def _unfinished(self) -> list[int]:
        return [number for number in self._kinds if self._phase(number) not in OVER]

    def _seen_training(self, number: int) -> bool:
        state = self._controller.engine.state
        job = state.job(self._names[number])
        return job is None or job.training or job.over

    def _placed(self) -> bool:
        job = self._controller.engine.state.job(self._names[ELASTIC])
        return job is None or job.over or (job.training and job.on == job.slots)


async def serve(life: Life) -> None:
    """Be the controller and its users."""
    folder, devices = Path(life.folder), find_devices(devices=DEVICES)
    if life.focus == "kill":
        hands.GRACE_S = GRACE_S
    controller = Controller(
        Store(folder / "cluster.db", snapshot_every=5),
        Fleet(devices, state_dir=folder),
        devices.cluster,
        policy="elasticflow",
        state_dir=folder,
    )
    loop = asyncio.ensure_future(controller.run())
    try:
        async with asyncio.timeout(life.seconds):
            await (_train(controller) if life.reference else Load(controller, life).play())
            say(Said("over"))
    except TimeoutError:
        _say_passed()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await controller.close()


async def _train(controller: Controller) -> None:
    """The reference jobs, from their beginning to their end."""
    events = controller.subscribe(0)
    for file in references():
        await controller.submit(read_spec(file), user="ada")
    while any(job.alive or not job.over for job in controller.engine.state.live.values()):
        await anext(events)


def _say_passed() -> None:
    """How often each point was passed, where all are armed for a time that never comes."""
    for name, armed in failpoint._armed.items():
        say(Said("passed", text=name, count=armed[0].passed))


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.stdin.buffer.read(), type=Life)))
