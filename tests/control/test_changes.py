"""What users and operators change while jobs run: their files, their sizes, nodes, and who decides."""

from pathlib import Path

import pytest

from melodeon.core.errors import NotFound, UsageError
from tests.control.stage import CURVE, Stage, play


def test_an_edit_is_judged_and_refused_edits_change_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        job = await stage.submit(steps=10_000, deadline="1h")
        refused = await stage.ask(stage.controller.edit(job.id, {"deadline": "1m"}, user="ada"))
        assert refused.admitted is False
        assert refused.job.deadline_at == job.deadline_at
        assert refused.job.earliest_deadline_at is not None
        taken = await stage.ask(stage.controller.edit(job.id, {"deadline": "10m"}, user="ada"))
        assert taken.admitted, taken.text
        assert taken.job.deadline_at == pytest.approx(stage.clock.now + 600, abs=0.1)
        best = await stage.ask(stage.controller.edit(job.id, {"deadline": None}, user="ada"))
        assert best.job.deadline_at is None
        assert best.job.goal == "best_effort"
        with pytest.raises(UsageError, match="cannot be changed"):
            await stage.controller.edit(job.id, {"name": "x"}, user="ada")
        assert stage.phase(job.id) == "running", "it trained through all of it"

    play(tmp_path, act)


def test_a_new_end_reaches_a_running_job_by_starting_it_again(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        job = await stage.submit(steps=10_000)
        await stage.after(5)
        await stage.ask(stage.controller.edit(job.id, {"steps": 500}, user="ada"))
        assert stage.controller.job(job.id).incarnation == 2
        await stage.after(10)
        done = stage.controller.job(job.id)
        assert (done.phase.value, done.step) == ("done", 500)

    play(tmp_path, act)


def test_a_new_end_cannot_lie_behind(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        job = await stage.submit(steps=10_000)
        await stage.after(5)
        done = stage.controller.job(job.id).step
        assert done > 100
        for changes in ({"steps": 100}, {"steps": done - 1}):
            with pytest.raises(UsageError, match=f"ends before step {done}, where {job.id} is"):
                await stage.ask(stage.controller.edit(job.id, changes, user="ada"))
        stays = stage.controller.job(job.id)
        assert (stays.phase.value, stays.total_steps, stays.incarnation) == ("running", 10_000, 1)
        assert (await stage.ask(stage.controller.edit(job.id, {"steps": done}, user="ada"))).admitted
        await stage.after(1)
        ended = stage.controller.job(job.id)
        assert (ended.phase.value, ended.step, ended.total_steps) == ("done", done, done)
        by_epochs = await stage.submit(steps=None, epochs=100)
        await stage.after(5)
        with pytest.raises(UsageError, match="epochs: 1 ends before step"):
            await stage.ask(stage.controller.edit(by_epochs.id, {"epochs": 1}, user="ada"))

    play(tmp_path, act)


def test_an_operator_fixes_a_size_and_gives_it_back(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        a = await stage.submit("a", steps=100_000)
        await stage.submit("b", steps=100_000)
        fixed = await stage.ask(stage.controller.scale(a.id, 1, user="op"))
        assert fixed.override == 1
        assert stage.workers()[a.id] == 1
        with pytest.raises(UsageError, match="1 to 8"):
            await stage.ask(stage.controller.scale(a.id, 9, user="op"))
        whole = await stage.submit("whole", workers="8", steps=100_000)
        with pytest.raises(UsageError, match="it may have 8 here"):
            await stage.ask(stage.controller.scale(whole.id, 9, user="op"))
        await stage.ask(stage.controller.cancel(whole.id, user="op"))
        taken = await stage.ask(stage.controller.edit(a.id, {"deadline": "10h"}, user="ada"))
        assert (taken.admitted, stage.workers()[a.id]) == (True, 1), taken.text
        refused = await stage.ask(stage.controller.edit(a.id, {"deadline": "1h"}, user="ada"))
        assert refused.admitted is False, "not at the size that it is fixed at"
        assert "operator fixed it at" in refused.text
        await stage.ask(stage.controller.scale(a.id, None, user="op"))
        assert stage.workers()[a.id] > 1

    play(tmp_path, act)


def test_nodes_that_are_drained_or_down_are_left(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit(steps=100_000)
        assert stage.workers() == {"cnn-1": 8}
        node = await stage.ask(stage.controller.set_node("node001", drained=True, user="op"))
        assert node.drained
        assert stage.workers() == {"cnn-1": 4}
        assert {d.node for d in stage.controller.job("cnn-1").devices} == {"node000"}
        assert stage.controller.overview().devices_up == 4
        await stage.ask(stage.controller.set_node("node000", up=False, user="op"))
        assert stage.workers() == {}, "nowhere to run"
        await stage.ask(stage.controller.set_node("node000", up=True, user="op"))
        await stage.ask(stage.controller.set_node("node001", drained=False, user="op"))
        assert stage.workers() == {"cnn-1": 8}
        with pytest.raises(NotFound):
            await stage.ask(stage.controller.set_node("node9", up=True, user="op"))

    play(tmp_path, act, cluster="2x4:cpu")


def test_under_easyscale_a_job_proposes_more_devices_as_they_become_free(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.ask(stage.controller.set_policy("easyscale-homo", user="op"))
        short = await stage.submit("short", 300, curve=CURVE, workers="4")
        long = await stage.submit("long", 10_000, curve=CURVE, workers="1-8")
        assert stage.workers() == {short.id: 4, long.id: 4}
        await stage.after(60)
        assert stage.workers() == {long.id: 8}
        assert "4 more cpu speeds it up by" in stage.controller.job(long.id).why

    play(tmp_path, act)


def test_another_policy_takes_over_and_back_again(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000, deadline="3h")
        await stage.submit("b", steps=100_000)
        for name in ("fifo", "edf", "tiresias", "elasticflow"):
            assert await stage.ask(stage.controller.set_policy(name, user="op")) == name
            await stage.after(5)
            assert stage.workers(), name
        assert stage.controller.engine.trouble == ""
        await stage.restart()
        assert stage.controller.overview().policy == "elasticflow"
        with pytest.raises(UsageError, match="did you mean"):
            await stage.controller.set_policy("elasticflo", user="op")
        await stage.after(100_000)
        assert {job.phase.value for job in stage.controller.jobs()} == {"done"}

    play(tmp_path, act)
