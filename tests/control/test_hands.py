"""Hands drive what is towards what shall be: in order, again after failures, and out of circles."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from melodeon.backends.fleet_fake import FakeFleet
from melodeon.backends.fleet_values import Ended, LaunchOrder, Slots, Wish
from melodeon.control.hands import Hands, Intent, Report, Trouble
from melodeon.core.errors import Unreachable, UsageError
from tests.control.stage import Clock


def wish(folder: Path, job: str, *slots: int, end: bool = False, number: int = 1) -> Intent:
    where = {"node0": slots} if slots else None
    order = LaunchOrder(
        job=job, incarnation=number, job_dir=str(folder / job), argv=("train.py",), slots=where or {}, steps=10**6
    )
    return Intent(Wish(job=job, incarnation=number, order=order, slots=where, end=end))


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.fleet, self.reports = folder, FakeFleet(Clock(), every_s=None), list[Report]()
        self.reported = asyncio.Event()
        self.hands = Hands(self.fleet, self._hear)

    def _hear(self, report: Report) -> None:
        self.reports.append(report)
        self.reported.set()

    async def want(self, *intents: Intent) -> None:
        """Say what shall be until nothing moves any more."""
        for _ in range(6):
            self.hands.want({intent.wish.job: intent for intent in intents})
            await self.hands.settle()
            for seen in self.fleet.news():
                self.hands.saw(seen)

    def wish(self, job: str, *slots: int, end: bool = False, number: int = 1) -> Intent:
        return wish(self.folder, job, *slots, end=end, number=number)


def play(folder: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene(folder)
        try:
            await act(scene)
        finally:
            await scene.hands.close()

    asyncio.run(main())


def test_two_jobs_can_swap_their_devices(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.want(scene.wish("a", 0, 1), scene.wish("b", 2, 3))
        await scene.want(scene.wish("a", 2, 3), scene.wish("b", 0, 1))
        assert scene.fleet.seen("a", 1).slots == {"node0": (2, 3)}
        assert scene.fleet.seen("b", 1).slots == {"node0": (0, 1)}

    play(tmp_path, act)


def test_a_job_waits_for_a_device_until_its_holder_has_left(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.want(scene.wish("a", 0, 1))
        asked, gate, stop = asyncio.Event(), asyncio.Event(), scene.fleet.stop

        async def slowly(job: str, incarnation: int) -> None:
            asked.set()
            await gate.wait()
            await stop(job, incarnation)

        scene.fleet.stop = slowly  # type: ignore[method-assign]
        wanted = {"a": scene.wish("a"), "b": scene.wish("b", 0, 1)}
        scene.hands.want(wanted)
        await asked.wait()
        assert ("launch", "b", 1) not in scene.fleet.calls
        gate.set()
        await scene.want(*wanted.values())
        assert ("launch", "b", 1) in scene.fleet.calls

    play(tmp_path, act)


@pytest.mark.parametrize("launching", [True, False], ids=["while it is launched", "before it is seen"])
def test_a_device_is_kept_for_whom_it_was_launched_on(tmp_path: Path, launching: bool) -> None:
    async def act(scene: Scene) -> None:
        asked, gate, launch = asyncio.Event(), asyncio.Event(), scene.fleet.launch

        async def slowly(order: LaunchOrder) -> None:
            asked.set()
            await gate.wait()
            await launch(order)

        scene.fleet.launch = slowly  # type: ignore[method-assign]
        scene.hands.want({"a": scene.wish("a", 0, 1)})
        await asked.wait()
        if not launching:
            gate.set()
            await scene.hands.settle()
        # Nobody has seen its workers yet, and now it shall have less.
        wanted = {"a": scene.wish("a", 0), "b": scene.wish("b", 1)}
        scene.hands.want(wanted)
        gate.set()
        await scene.hands.settle()
        assert ("launch", "b", 1) not in scene.fleet.calls
        await scene.want(*wanted.values())
        assert scene.fleet.seen("a", 1).slots == {"node0": (0,)}
        assert ("launch", "b", 1) in scene.fleet.calls

    play(tmp_path, act)


def test_a_launch_that_failed_keeps_no_device(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async def nobody(order: LaunchOrder) -> None:
            raise Unreachable("the machine does not answer")

        launch, scene.fleet.launch = scene.fleet.launch, nobody  # type: ignore[method-assign]
        scene.hands.want({"a": scene.wish("a", 0, 1)})
        await scene.hands.settle()
        scene.fleet.launch = launch  # type: ignore[method-assign]
        scene.hands.want({"a": scene.wish("a", 0), "b": scene.wish("b", 1)})
        await scene.hands.settle()
        assert ("launch", "b", 1) in scene.fleet.calls

    play(tmp_path, act)


def test_an_end_in_the_middle_of_a_move_is_no_trouble(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.want(scene.wish("a", 0))
        place = scene.fleet.place

        async def too_late(job: str, incarnation: int, slots: Slots) -> None:
            scene.fleet.end(job, incarnation, Ended(status="done"))
            await place(job, incarnation, slots)

        scene.fleet.place = too_late  # type: ignore[method-assign]
        await scene.want(scene.wish("a", 0, 1))
        assert not [report for report in scene.reports if isinstance(report, Trouble)]

    play(tmp_path, act)


def test_a_launch_that_cannot_be_is_the_jobs_end_and_others_are_tried_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        launch, failures = scene.fleet.launch, [Unreachable("busy"), UsageError("no such folder")]

        async def failing(order: LaunchOrder) -> None:
            if failures:
                raise failures.pop(0)
            await launch(order)

        scene.fleet.launch = failing  # type: ignore[method-assign]
        await scene.want(scene.wish("a", 0))
        assert isinstance(scene.reports[0], Trouble)
        async with asyncio.timeout(10):
            while len(scene.reports) < 2:
                scene.reported.clear()
                await scene.reported.wait()
        ended = scene.reports[1].ended  # type: ignore[union-attr]
        assert ended is not None
        assert (ended.status, ended.reason) == ("failed", "no such folder")

    play(tmp_path, act)


def test_what_was_not_launched_need_not_be_stopped(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.want(scene.wish("a"))
        (report,) = scene.reports[:1]
        assert report.ended is not None  # type: ignore[union-attr]
        assert report.ended.status == "unstarted"  # type: ignore[union-attr]
        assert scene.fleet.calls == []

    play(tmp_path, act)
