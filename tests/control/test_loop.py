"""The loop holds: what one report, a job that is not found, its own end, or a long past does to it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from melodeon.backends.fleet_values import Seen
from melodeon.control.events import AnyFact, Forgotten
from melodeon.control.hands import Report
from melodeon.control.sight import Sight
from melodeon.control.state import State
from melodeon.control.store import KEEP_S, Batch
from melodeon.core.errors import NotFound, Unreachable
from tests.control.stage import Stage


def test_a_report_that_is_not_understood_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = Sight.take

    def odd(self: Sight, state: State, report: Report, now: float) -> Iterator[AnyFact]:
        assert report.job != "odd-1", "no such thing"
        return take(self, state, report, now)

    monkeypatch.setattr(Sight, "take", odd)

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            await stage.submit("odd", 100, workers="1")
            job = await stage.submit("fine", 1000, workers="1")
            await stage.after(1000 / 10 + 5)
            assert stage.phase(job.id) == "done"
            assert stage.phase("odd-1") == "starting", "nothing was understood of it"
            assert "odd-1" in stage.controller.engine.trouble
            assert "no such thing" in capsys.readouterr().err

    asyncio.run(play())


def test_jobs_that_were_over_long_ago_are_forgotten(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            old = await stage.submit("old", 100)
            await stage.after(60)
            assert stage.phase(old.id) == "done"
            stage.clock.now += KEEP_S
            new = await stage.submit("new", 100)
            assert new.id == "new-2", "numbers go on"
            await stage.after(60)
            with pytest.raises(NotFound):
                stage.controller.job(old.id)
            assert stage.phase(new.id) == "done"
            await stage.restart()
            assert [job.id for job in stage.controller.jobs()] == [new.id]
            facts = [entry.fact for entry in stage.controller.engine.store.events(0, None, 1000)]
            assert sum(isinstance(fact, Forgotten) for fact in facts) == 1

    asyncio.run(play())


def test_a_job_that_cannot_be_found_at_once_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            first = await stage.submit("first", 5000, workers="1")
            other = await stage.submit("other", 1000, workers="1")
            adopt = stage.fleet.adopt

            async def refuse(job_dir: Path, job: str, incarnation: int) -> Seen:
                if job == first.id:
                    raise Unreachable("its folder cannot be read now: try again")
                return await adopt(job_dir, job, incarnation)

            monkeypatch.setattr(stage.fleet, "adopt", refuse)
            await stage.restart()
            await stage.after(5000 / 10 + 5)
            assert [stage.phase(job.id) for job in (first, other)] == ["done", "done"]
            assert stage.controller.job(first.id).incarnation == 1, "found again, not started again"

    asyncio.run(play())


def test_a_loop_that_is_stopped_tells_those_it_was_serving(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            engine = stage.controller.engine
            writing, written, append = asyncio.Event(), threading.Event(), engine.store.append
            here = asyncio.get_running_loop()

            def slowly(batch: Batch) -> int:
                here.call_soon_threadsafe(writing.set)
                written.wait(30)
                return append(batch)

            running = asyncio.ensure_future(stage.controller.run())
            await stage.controller.set_policy("fifo", user="op")  # it runs
            engine.store.append = slowly  # type: ignore[method-assign]
            asked = asyncio.ensure_future(stage.controller.set_policy("edf", user="op"))
            await writing.wait()
            running.cancel()
            with pytest.raises(Unreachable, match="is stopping"):
                await asyncio.wait_for(asked, 10)
            written.set()

    asyncio.run(play())
