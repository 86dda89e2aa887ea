"""What becomes of jobs, wish by wish, on a clock that the test moves."""

import asyncio
from pathlib import Path

import pytest

from melodeon.backends.fleet_values import Ended
from melodeon.core.errors import MelodeonError, NotFound, UsageError
from melodeon.sched.quota import DAY_S, Quota, Quotas
from melodeon.sched.tick import NO_RULES, Rules
from tests.control.stage import CURVE, Stage, play, spec


def test_a_job_is_admitted_trains_and_is_done(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answer = await stage.ask(stage.controller.submit(spec(curve=CURVE, deadline="1h"), user="ada"))
        assert answer.admitted
        assert answer.job.id == "cnn-1"
        assert answer.job.workers == 8
        assert answer.job.planned_finish_at == pytest.approx(stage.clock.now + 1000 / 60, abs=1)
        assert stage.phase("cnn-1") == "running"
        await stage.after(100)
        job = stage.controller.job("cnn-1")
        assert (job.phase.value, job.step, job.exit_code, job.workers) == ("done", 1000, 0, 0)
        assert job.finished_at == pytest.approx(job.submitted_at + 1000 / 60, abs=0.1)
        told = [sentence.text for sentence in stage.controller.story("cnn-1")]
        assert told[0].startswith("submitted by ada: 1,000 steps; deadline")
        assert any(text.startswith("starts on 8 cpu, node000 (0-7)") for text in told)
        assert told[-1].startswith("done after 17 s")

    play(tmp_path, act)


def test_a_job_that_cannot_be_in_time_is_turned_away_with_a_deadline_that_is_accepted(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answer = await stage.ask(stage.controller.submit(spec(steps=100_000, curve=CURVE, deadline="10m"), user="ada"))
        assert answer.admitted is False
        assert answer.job.phase.value == "rejected"
        assert answer.job.earliest_deadline_at is not None
        assert "--deadline" in answer.next
        left = answer.next.rpartition(" ")[2]
        again = await stage.ask(stage.controller.submit(spec(steps=100_000, curve=CURVE, deadline=left), user="ada"))
        assert again.admitted, again.text
        endless = spec(steps=2**52, curve=CURVE, deadline="10m")
        never = await stage.ask(stage.controller.submit(endless, user="ada"))
        assert (never.admitted, never.job.earliest_deadline_at) == (False, None), "no deadline may be so far away"
        assert never.next.endswith("--on-miss soft")

    play(tmp_path, act)


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answer = await stage.ask(stage.controller.submit(spec(curve=CURVE, deadline="1h"), user="ada", dry_run=True))
        assert answer.admitted
        assert answer.dry_run
        assert answer.job.planned_finish_at is not None
        assert stage.controller.jobs() == ()
        assert (await stage.submit()).id == "cnn-1", "no number was used up"

    play(tmp_path, act)


def test_the_same_request_gets_the_same_answer_even_after_a_restart(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        asked = spec(curve=CURVE)
        first = await stage.ask(stage.controller.submit(asked, user="ada", request_id="r1"))
        again = await stage.ask(stage.controller.submit(asked, user="ada", request_id="r1"))
        assert again == first
        await stage.restart()
        assert await stage.ask(stage.controller.submit(asked, user="ada", request_id="r1")) == first
        assert len(stage.controller.jobs()) == 1
        other = await stage.ask(stage.controller.submit(asked, user="bob", request_id="r1"))
        assert other.job.id == "cnn-2", "somebody else's id is another request"
        with pytest.raises(UsageError, match="another job"):
            await stage.ask(stage.controller.submit(spec(steps=7, curve=CURVE), user="ada", request_id="r1"))

    play(tmp_path, act)


def test_two_at_once_under_one_request_id_are_one_job(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        async def both() -> list[str]:
            asked = [stage.controller.submit(spec(curve=CURVE), user="ada", request_id="r") for _ in range(2)]
            return [answer.job.id for answer in await asyncio.gather(*asked)]

        assert await stage.ask(both()) == ["cnn-1", "cnn-1"]
        assert len(stage.controller.jobs()) == 1

    play(tmp_path, act)


def test_a_job_of_unknown_speed_is_measured_before_it_is_judged(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        answer = await stage.ask(stage.controller.submit(spec(deadline="1h"), user="ada"))
        assert answer.admitted is None
        job = stage.controller.job("cnn-1")
        assert ("profile", "cnn-1", 1) in stage.fleet.calls
        assert job.phase.value == "running", job.why
        assert job.curve["1"] == pytest.approx(10.0)
        again = await stage.ask(stage.controller.submit(spec(deadline="1h"), user="ada"))
        assert again.admitted, "the second of its kind needs no profile"

    play(tmp_path, act)


def test_a_measured_job_that_cannot_be_in_time_is_turned_away_and_stopped(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.ask(stage.controller.submit(spec(steps=1_000_000, deadline="5m"), user="ada"))
        job = stage.controller.job("cnn-1")
        assert job.phase.value == "rejected", job.why
        assert job.earliest_deadline_at is not None
        assert ("stopped", "cnn-1", 1) in stage.fleet.calls
        assert stage.workers() == {}

    play(tmp_path, act)


def test_best_effort_jobs_are_measured_while_they_run(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.fleet.curves["cnn"] = {1: 3.0, 2: 5.0, 4: 9.0, 8: 8.0}
        assert (await stage.submit(curve=None, steps=100_000)).workers == 8
        await stage.after(10)
        job = stage.controller.job("cnn-1")
        assert job.curve["8"] == pytest.approx(8.0)
        await stage.ask(stage.controller.scale("cnn-1", 4, user="op"))
        await stage.after(10)
        job = stage.controller.job("cnn-1")
        assert "8" not in job.curve, "eight are slower than four: struck"
        await stage.ask(stage.controller.scale("cnn-1", None, user="op"))
        await stage.after(10)
        assert stage.workers() == {"cnn-1": 4}, "it has fallen back"

    play(tmp_path, act)


def test_cancel_while_waiting_running_and_twice(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        running = await stage.submit("a", workers="8", steps=10_000)
        waiting = await stage.submit("b", workers="8", steps=10_000)
        assert (stage.phase(running.id), stage.phase(waiting.id)) == ("running", "waiting")
        assert (await stage.ask(stage.controller.cancel(waiting.id, user="ada"))).phase.value == "cancelled"
        assert (await stage.ask(stage.controller.cancel(running.id, user="ada"))).phase.value == "cancelling"
        assert stage.phase(running.id) == "cancelled"
        assert (await stage.ask(stage.controller.cancel(running.id, user="ada"))).phase.value == "cancelled"
        assert stage.workers() == {}
        with pytest.raises(NotFound, match="did you mean"):
            await stage.controller.cancel("a-9", user="ada")
        await stage.submit("train")
        with pytest.raises(NotFound, match="see `melodeon ps`"):  # no name is like it
            await stage.controller.cancel("nothing", user="ada")

    play(tmp_path, act)


def test_devices_are_taken_only_when_nobody_is_there_any_more(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=10_000)
        await stage.submit("b", steps=10_000, deadline="10m")
        order = [(what, job) for what, job, _ in stage.fleet.calls]
        assert order.index(("place", "a-1")) < order.index(("launch", "b-2")), "first it shrinks, then the other starts"
        held = [set(seen.slots["node000"]) for seen in (stage.fleet.seen("a-1", 1), stage.fleet.seen("b-2", 1))]
        assert not held[0] & held[1]

    play(tmp_path, act)


def test_a_suspended_job_goes_on_where_it_was(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("low", workers="8", steps=10_000)
        await stage.after(10)
        await stage.submit("high", workers="8", steps=600, deadline="11.5s")
        assert (stage.phase("low-1"), stage.phase("high-2")) == ("waiting", "running")
        kept = stage.controller.job("low-1").step
        assert kept >= 590
        await stage.after(12)
        job = stage.controller.job("low-1")
        assert (job.phase.value, job.incarnation, job.num_suspensions) == ("running", 2, 1)
        assert job.step >= kept
        assert stage.phase("high-2") == "done"

    play(tmp_path, act)


def test_lost_workers_are_started_again_as_often_as_the_job_allows(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit(steps=100_000, restarts=2)
        for number in (1, 2, 3):
            await stage.after(5)
            stage.fleet.end("cnn-1", number, Ended(status="lost", reason="its launcher is gone"))
            await stage.after(0.1)
        job = stage.controller.job("cnn-1")
        assert (job.phase.value, job.incarnation) == ("failed", 3)
        assert "its launcher is gone" in job.why

    play(tmp_path, act)


def test_a_failing_script_fails_the_job_at_once(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit(steps=100_000)
        stage.fleet.end("cnn-1", 1, Ended(status="failed", exit_code=1, reason="ValueError: no data"))
        await stage.after(0.1)
        job = stage.controller.job("cnn-1")
        assert (job.phase.value, job.exit_code, job.why) == ("failed", 1, "ValueError: no data")

    play(tmp_path, act)


def test_deadlines_pass_and_late_jobs_go_on(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        soft = await stage.submit("soft", steps=10_000, deadline="60s", on_miss="soft")
        await stage.after(61)
        told = [sentence.text for sentence in stage.controller.story(soft.id)]
        assert "its deadline passed" in told
        assert stage.phase(soft.id) == "running"
        await stage.after(1000)
        assert stage.phase(soft.id) == "done"

    play(tmp_path, act)


def test_quotas_hold_for_measured_jobs_too(tmp_path: Path) -> None:
    rules = Rules(quotas=Quotas(default=Quota(active_jobs=1)))

    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=100_000)
        known = await stage.ask(stage.controller.submit(spec(curve=CURVE, deadline="1h"), user="ada"))
        unknown = await stage.ask(stage.controller.submit(spec(deadline="1h"), user="ada"))
        assert known.admitted is False
        assert unknown.admitted is False
        assert "may have 1" in unknown.text
        other = await stage.ask(stage.controller.submit(spec(curve=CURVE, deadline="10h"), user="bob"))
        assert other.admitted

    play(tmp_path, act, rules=lambda: rules)


def test_a_days_quota_counts_what_was_accepted_before_there_were_quotas(tmp_path: Path) -> None:
    rules = [NO_RULES]

    async def act(stage: Stage) -> None:
        submit = stage.controller.submit
        assert (await stage.ask(submit(spec(curve=CURVE), user="ada"))).admitted
        rules[0] = Rules(quotas=Quotas(default=Quota(jobs_per_day=1)))
        second = await stage.ask(submit(spec(curve=CURVE), user="ada"))
        assert (second.admitted, "had 1 job accepted in the last day and may have 1" in second.text) == (False, True)
        await stage.after(DAY_S + 60)
        assert (await stage.ask(submit(spec(curve=CURVE), user="ada"))).admitted

    play(tmp_path, act, rules=lambda: rules[0])


def test_a_change_of_a_job_is_no_other_job_to_a_quota(tmp_path: Path) -> None:
    rules = Rules(quotas=Quotas(default=Quota(jobs_per_day=2, active_jobs=2)))

    async def act(stage: Stage) -> None:
        submit, edit = stage.controller.submit, stage.controller.edit
        job = (await stage.ask(submit(spec(steps=100_000, curve=CURVE), user="ada"))).job
        for priority in (2.0, 3.0, 4.0):
            changed = await stage.ask(edit(job.id, {"priority": priority}, user="ada"))
            assert changed.admitted, changed.text
        assert (await stage.ask(submit(spec(steps=100_000, curve=CURVE), user="ada"))).admitted
        assert not (await stage.ask(submit(spec(steps=100_000, curve=CURVE), user="ada"))).admitted

    play(tmp_path, act, rules=lambda: rules)


def test_the_clock_may_go_back(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit(steps=100_000)
        await stage.after(10)
        before = stage.controller.overview().now
        stage.clock.now -= 3600
        await stage.submit("b")
        assert stage.controller.overview().now >= before
        times = [event.at for event in stage.controller.events()]
        assert times == sorted(times)

    play(tmp_path, act)


def test_events_are_numbered_and_followed_from_anywhere(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit()
        seen = stage.controller.events()
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        follower = stage.controller.subscribe(after=2)
        assert (await anext(follower)).seq == 3
        fresh = stage.controller.subscribe()
        await stage.submit("b")
        assert (await asyncio.wait_for(anext(fresh), 10)).job == "b-2", "from when it was asked for, not first read"
        assert all(event.job == "b-2" for event in stage.controller.events(job="b-2"))
        await follower.aclose()  # type: ignore[attr-defined]
        await fresh.aclose()  # type: ignore[attr-defined]

    play(tmp_path, act)


def test_charts_come_from_the_store(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=2000)
        await stage.after(3)
        await stage.submit("b", steps=2000)
        for _ in range(5):
            await stage.after(3)
        await stage.restart()
        columns = stage.controller.series("a-1").columns
        assert len(columns["step"]) == len(columns["at"]) == len(columns["loss"]) >= 4
        assert columns["workers"][0] == 8
        line = stage.controller.timeline(0, stage.clock.now)
        assert line.capacity == 8
        assert {span.job for span in line.spans} == {"a-1", "b-2"}

    play(tmp_path, act)


def test_what_if_plays_the_live_cluster_forward(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=6000)
        await stage.after(10)
        now = await stage.controller.whatif()
        assert now.jobs[0].finish_at == pytest.approx(stage.clock.now + 5400 / 60, rel=0.02)
        more = await stage.controller.whatif(spec=spec("x", steps=600, curve=CURVE, deadline="1h"))
        assert [job.id for job in more.jobs] == ["a-1", "x-new"]
        assert more.deadlines_met == 1
        fifo = await stage.controller.whatif(policy="fifo")
        assert fifo.policy == "fifo"
        assert stage.controller.overview().policy == "elasticflow"
        with pytest.raises(UsageError, match="curve"):
            await stage.controller.whatif(spec=spec("y"))
        await stage.after(1000)
        assert stage.controller.job("a-1").finished_at == pytest.approx(now.jobs[0].finish_at or 0, rel=0.02)

    play(tmp_path, act)


def test_a_failing_disk_refuses_the_wish_and_nothing_is_half_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def act(stage: Stage) -> None:
        await stage.submit("a", steps=600)
        writer = stage.controller.engine.store._writer
        writer.execute("PRAGMA query_only = 1")
        with pytest.raises(MelodeonError, match="nothing was changed"):
            await stage.ask(stage.controller.submit(spec("b", curve=CURVE), user="ada", request_id="r"))
        assert [job.id for job in stage.controller.jobs()] == ["a-1"]
        stage.clock.now += 60
        stage.fleet.look()
        for seen in stage.fleet.news():
            stage.controller.engine.report(seen)
        await stage.controller.engine.turn()
        assert stage.phase("a-1") == "running", "its end could not be stored"
        told = capsys.readouterr().err.splitlines()
        assert [line.partition(" cannot be used")[0] for line in told] == [
            f"melodeon: the cluster's log '{tmp_path}/cluster.db'"
        ], "whoever serves is told once"
        writer.execute("PRAGMA query_only = 0")
        await stage.after(1)
        assert stage.phase("a-1") == "done", "and was not forgotten"
        again = await stage.ask(stage.controller.submit(spec("b", curve=CURVE), user="ada", request_id="r"))
        assert again.job.id == "b-2"

    play(tmp_path, act)
