"""When jobs will be done: the latest moment is never before the one that playing forward finds."""

import asyncio
from pathlib import Path

import pytest

from melodeon.control import forecast, whatif
from melodeon.control.forecast import Standing, latest
from tests.control.stage import CURVE, Stage, spec


def standing(stage: Stage) -> Standing:
    engine = stage.controller.engine
    return Standing.of(
        engine.state, engine.world, engine.memory, engine.sight.progress(engine.state), engine.clock.now()
    )


@pytest.mark.parametrize("policy", ["elasticflow", "fifo", "edf-elastic"])
@pytest.mark.parametrize("cluster", ["1x8:cpu", "2x2:cpu"])
def test_no_job_is_done_later_than_its_latest_moment(tmp_path: Path, policy: str, cluster: str) -> None:
    async def play() -> None:
        async with Stage(tmp_path, policy=policy, cluster=cluster) as stage:
            for number in range(12):
                soft = {"deadline": "2h", "on_miss": "soft"} if number % 3 == 1 else {}
                hard = {"deadline": "10h"} if number % 3 == 2 else {}
                await stage.submit(f"j{number}", 500 + 300 * (number % 4), workers="1-4", **soft, **hard)
                await stage.after(1.0)
            now = standing(stage)
            played, bound = now.played().ends, now.latest()
            assert played.keys() == bound.keys()
            assert len(played) > 6
            assert all(played[name] <= bound[name] + 1e-6 for name in played)

    asyncio.run(play())


def test_a_promised_deadline_is_the_latest_moment(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, margin=0.0) as stage:
            for number in range(4):
                await stage.submit(f"long{number}", 100_000)
            job = await stage.submit("due", 1000, deadline="5m")
            now = standing(stage)
            assert now.latest([job.id]) == {job.id: pytest.approx(job.deadline_at)}
            assert latest(now.view, promised=False)[job.id] > 300

    asyncio.run(play())


def test_pages_do_not_call_a_deadline_missed_that_may_be_met(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            for number in range(4):
                await stage.submit(f"long{number}", 100_000)
            job = await stage.submit("soft", 1000, deadline="5m", on_miss="soft")
            now = standing(stage)
            assert now.latest()[job.id] > (job.deadline_at or 0.0)
            assert job.id not in now.foretold()
            assert len(now.foretold()) == 4

    asyncio.run(play())


def test_behind_many_jobs_an_answer_still_says_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "PLAYED", 2)
    monkeypatch.setattr(forecast, "PLAYED_LATER", 3)

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            for number in range(5):
                job = await stage.submit(f"j{number}", 1000)
                assert job.planned_finish_at is not None
                assert job.planned_finish_at > stage.clock.now
            await stage.after(3.0)
            await stage.submit("another", 1000)
            assert all(info.planned_finish_at is not None for info in stage.controller.jobs())

    asyncio.run(play())


def test_dry_runs_of_one_name_are_each_told_their_own(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            asked = [
                stage.controller.submit(spec("same", steps, curve=CURVE), user="ada", dry_run=True)
                for steps in (600, 60_000)
            ]
            short, long = await stage.ask(asyncio.wait_for(asyncio.gather(*asked), 30))
            assert short.job.planned_finish_at == pytest.approx(stage.clock.now + 10, abs=1)
            assert long.job.planned_finish_at == pytest.approx(stage.clock.now + 1000, abs=1)

    asyncio.run(play())


def test_where_no_plan_can_be_shown_somebody_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError("a speed of 0")

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            await stage.submit("any", 1000)
            monkeypatch.setattr(whatif, "as_it_is", mistaken)
            assert standing(stage).played().ends == {}

    asyncio.run(play())
    assert "a speed of 0" in caplog.text
