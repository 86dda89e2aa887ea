"""A controller that is gone and another that comes: what it finds, and what it makes of it."""

import asyncio
from pathlib import Path

import pytest

from melodeon.backends.fleet_values import LaunchOrder
from tests.control.stage import CURVE, Stage, play, spec


def test_running_jobs_are_found_again_and_not_started_twice(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000, deadline="3h")
        await stage.submit("b", steps=100_000)
        await stage.after(10)
        before = {job.id: (job.incarnation, job.workers) for job in stage.controller.jobs()}
        await stage.restart(same_fleet=False)
        assert {job.id: (job.incarnation, job.workers) for job in stage.controller.jobs()} == before
        assert [what for what, _, _ in stage.fleet.calls if what == "launch"] == []
        assert stage.controller.job("a-1").step >= 100
        await stage.after(20_000)
        assert {job.phase.value for job in stage.controller.jobs()} == {"done"}

    play(tmp_path, act)


def test_jobs_that_ended_meanwhile_are_done_and_their_devices_given_on(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", workers="8", steps=600)
        await stage.submit("b", workers="8", steps=600)
        stage.clock.now += 60
        await stage.restart(same_fleet=False)
        assert stage.phase("a-1") == "done"
        assert stage.phase("b-2") == "running"

    play(tmp_path, act)


def test_a_deadline_that_was_met_while_nobody_looked_was_met(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        job = await stage.submit("a", workers="8", steps=600, deadline="60s")
        assert job.deadline_at is not None
        stage.clock.now += 3600
        await stage.restart(same_fleet=False)
        done = stage.controller.job("a-1")
        assert done.phase.value == "done"
        assert done.finished_at == pytest.approx(job.submitted_at + 10, abs=1)
        story = stage.controller.story("a-1")
        told = [sentence.text for sentence in story]
        assert [sentence.at for sentence in story] == sorted(sentence.at or 0.0 for sentence in story)
        assert told[-2] == "trained to its end at step 600, 60 min before it was heard of"
        assert told[-1].startswith("done after 10.0 s, 50 s before its deadline")
        assert "its deadline passed" not in told
        times = [event.at for event in stage.controller.events()]
        assert times == sorted(times), "the log says when it was heard of"

    play(tmp_path, act)


def test_an_incarnation_that_was_never_launched_is_claimed_and_the_next_one_starts(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        async def forgotten(order: LaunchOrder) -> None:
            """The controller dies before its launcher has made the folder."""

        launch, stage.fleet.launch = stage.fleet.launch, forgotten  # type: ignore[method-assign]
        await stage.submit("a", steps=600)
        assert stage.phase("a-1") == "starting"
        stage.fleet.launch = launch  # type: ignore[method-assign]
        await stage.restart()
        job = stage.controller.job("a-1")
        assert (job.phase.value, job.incarnation) == ("running", 2)
        assert (tmp_path / "jobs" / "a-1" / "a-1.1" / "claimed").exists()

    play(tmp_path, act)


def test_an_acknowledged_cancel_is_carried_out_by_the_next_controller(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000)

        async def forgotten(job: str, incarnation: int) -> None:
            """The controller dies before it has asked the job to stop."""

        stop, stage.fleet.stop = stage.fleet.stop, forgotten  # type: ignore[method-assign]
        assert (await stage.ask(stage.controller.cancel("a-1", user="ada"))).phase.value == "cancelling"
        stage.fleet.stop = stop  # type: ignore[method-assign]
        await stage.restart()
        assert stage.phase("a-1") == "cancelled"

    play(tmp_path, act)


def test_a_cancel_during_launch_is_kept(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        gate = asyncio.Event()
        launch = stage.fleet.launch

        async def slowly(order: LaunchOrder) -> None:
            await gate.wait()
            await launch(order)

        stage.fleet.launch = slowly  # type: ignore[method-assign]
        engine, controller = stage.controller.engine, stage.controller
        asked = asyncio.ensure_future(controller.submit(spec("a", curve=CURVE), user="ada"))
        await engine._stirred.wait()
        await engine.turn()
        await asked
        engine._stirred.clear()
        cancelled = asyncio.ensure_future(controller.cancel("a-1", user="ada"))
        await engine._stirred.wait()
        await engine.turn()
        assert (await cancelled).phase.value == "cancelling"
        gate.set()
        await engine.settle()
        await stage.settle()
        assert stage.phase("a-1") == "cancelled"
        assert stage.fleet.seen("a-1", 1).ended is not None

    play(tmp_path, act)


def test_other_devices_after_a_restart(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000)
        await stage.after(5)
        await stage.restart(cluster="1x4:cpu")
        job = stage.controller.job("a-1")
        assert (job.workers, job.incarnation, job.phase.value) == (4, 2, "running")
        assert job.step >= 290

    play(tmp_path, act)


def test_a_job_that_the_cluster_has_become_too_small_for_says_so(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000, workers="6-8")
        await stage.after(5)
        await stage.restart(cluster="1x4:cpu")
        job = stage.controller.job("a-1")
        assert job.phase.value == "waiting"
        assert job.why == "it needs at least 6 workers and the cluster has 4 devices that it may use"
        await stage.ask(stage.controller.edit("a-1", {"workers": "1-4"}, user="ada"))
        assert stage.phase("a-1") == "running"

    play(tmp_path, act)


def test_the_policy_that_was_set_last_stays(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.ask(stage.controller.set_policy("fifo", user="op"))
        await stage.restart()
        assert stage.controller.overview().policy == "fifo"

    play(tmp_path, act)
