"""What charts are told of a job: how far it was, what it held, and when it stood still."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from melodeon.control.events import AnyFact, Ended, Entry, Moved, Paused, Planned, Sized
from melodeon.control.infos import series
from melodeon.control.sight import Sight
from melodeon.core.service import Phase
from tests.control.stage import Stage

AT = 1000.0
SLOTS: dict[str, tuple[int, ...]] = {"n": (0, 1)}


def pauses(*facts: AnyFact) -> list[tuple[float | None, float | None]]:
    log = [Entry(seq, AT + seq, fact) for seq, fact in enumerate(facts)]
    columns = series((), (), log).columns
    return list(zip(columns["pause_at"], columns["pause_s"], strict=True))


def test_pauses_are_what_the_sums_of_each_start_grew_by() -> None:
    found = pauses(
        Moved(job="a-1", incarnation=1, slots=SLOTS, pause_s=0.5),
        Planned(job="a-1", counts=(), placement=(), slots={}, why=""),
        Paused(job="a-1", incarnation=1, pause_s=0.75),
        Ended(job="a-1", incarnation=1, status="stopped", pause_s=0.75),
        Moved(job="a-1", incarnation=2, slots=SLOTS, pause_s=0.0),
        Ended(job="a-1", incarnation=2, status="done", pause_s=0.25),
    )
    assert found == [(AT, 0.5), (AT + 2, 0.25), (AT + 5, 0.25)]


def test_a_pause_is_noted_when_it_is_over_also_where_workers_were_there_before(tmp_path: Path) -> None:
    """New workers are seen while they start; the job stands still for them only later."""

    async def act() -> None:
        async with Stage(tmp_path) as stage:
            job = await stage.submit(steps=100_000)
            engine = stage.controller.engine
            seen = stage.fleet.seen(job.id, 1)
            sight = Sight({"node000": "cpu"})
            assert not list(sight.take(engine.state, seen, AT))
            longer = replace(seen, pause_s=seen.pause_s + 0.5)
            assert list(sight.take(engine.state, longer, AT)) == [
                Paused(job=job.id, incarnation=1, pause_s=longer.pause_s)
            ]
            engine.report(longer)
            await engine.turn()
            assert stage.controller.series(job.id).columns["pause_s"][-1] == 0.5

    asyncio.run(act())


def test_a_start_that_does_not_know_the_newest_file_says_no_length(tmp_path: Path) -> None:
    async def act() -> None:
        async with Stage(tmp_path) as stage:
            job = await stage.submit(steps=100_000)
            await stage.ask(stage.controller.edit(job.id, {"steps": 90_000}, user="ada"))
            log = stage.controller.engine.store.events(0, job.id, 1000)
            told = [entry.fact.total_steps for entry in log if isinstance(entry.fact, Sized)]
            assert set(told) <= {90_000}, "of the old start it would be 100,000"
            assert stage.controller.job(job.id).total_steps == 90_000

    asyncio.run(act())


def test_the_end_of_a_job_is_in_its_charts(tmp_path: Path) -> None:
    async def act() -> None:
        async with Stage(tmp_path) as stage:
            job = await stage.submit(steps=600)
            await stage.after(10)
            assert stage.controller.job(job.id).phase is Phase.DONE
            assert stage.controller.series(job.id).columns["step"][-1] == 600

    asyncio.run(act())
