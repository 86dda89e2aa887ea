"""The master's rules, one at a time."""

import msgspec
import pytest

from melodeon.coord.master import Master
from melodeon.coord.master_state import JOB_MOVES, STAGE_MOVES, WORKER_MOVES, JobPhase, MasterState, Stage
from melodeon.coord.messages import Phase
from tests.coord.master_bench import Bench, job

# -- start --


def test_initial_workers_are_spread_over_agents_and_start_together() -> None:
    bench = Bench({"a": 2, "b": 2}, workers=3)
    bench.report("a")
    assert bench.workers() == []
    bench.report("b")
    assert [bench.agent_of(worker) for worker in (0, 1, 2)] == ["a", "b", "a"]
    bench.report("a")
    bench.ready(0, 1)
    assert bench.state.view is None
    bench.ready(2)
    assert bench.view.generation == 1
    assert not bench.view.planned
    assert bench.view.workers == (0, 1, 2)
    assert bench.view.assignment.virtual_workers == 4


def test_a_missing_agent_is_not_waited_for_without_end() -> None:
    bench = Bench({"a": 2, "b": 2}, workers=2)
    bench.report("a")
    assert bench.outcome.wake_at == 10.0
    bench.tick(10.0)
    assert bench.workers() == [0, 1]


def test_a_patience_that_is_over_does_not_wake_the_master_again_and_again() -> None:
    bench = Bench({"a": 2, "b": 2}, workers=2)
    bench.report("a")
    assert bench.tick(10.0).wake_at is None
    assert bench.tick(1.0).wake_at is None


def test_too_few_slots_fail_with_the_numbers() -> None:
    bench = Bench({"a": 2}, workers=3)
    bench.report("a")
    bench.tick(11.0)
    assert bench.state.outcome == "failed"
    assert "3 workers" in bench.state.text
    assert "2" in bench.state.text


def test_workers_that_all_end_before_they_train_fail_with_how_the_last_one_ended() -> None:
    bench = Bench({"a": 2}, workers=2, restarts=1)
    bench.report("a")
    for worker in (0, 1, 2):
        bench.gone(worker, exit_code=-11)
    assert bench.state.outcome == "failed"
    assert bench.state.text.startswith("worker 2 died of SIGSEGV before it trained; 0 workers left to start with")


def test_more_workers_than_virtual_workers_fail() -> None:
    bench = Bench(workers=3, virtual_workers=2)
    bench.report_all()
    bench.ready(0, 1, 2)
    assert bench.state.outcome == "failed"
    assert "raise virtual_workers" in bench.state.text


def test_a_worker_lost_before_the_first_view_is_replaced_if_restarts_allow() -> None:
    bench = Bench(workers=2, restarts=1)
    bench.report_all()
    bench.ready(0)
    bench.gone(1)
    assert bench.workers() == [0, 2]
    bench.ready(2)
    assert bench.view.workers == (0, 2)
    assert bench.state.restarts_left == 0


def test_an_agent_that_was_away_before_anything_was_trained_starts_its_workers_again() -> None:
    bench = Bench({"a": 2}, workers=2)
    bench.report_all()
    bench.tick(9.0)
    bench.take(bench.master.on_agent_lost("a", bench.now))
    bench.tick(5.0)
    assert bench.state.outcome == ""
    bench.report_all()
    assert bench.workers() == [2, 3]
    bench.ready(2, 3)
    assert bench.view.workers == (2, 3)


def test_an_agent_that_stays_away_before_anything_was_trained_is_not_waited_for_without_end() -> None:
    bench = Bench({"a": 2}, workers=2)
    bench.report_all()
    bench.take(bench.master.on_agent_lost("a", bench.now))
    bench.tick(11.0)
    assert bench.state.outcome == "failed"


def test_workers_meet_by_a_file_on_one_host_and_by_an_address_on_several() -> None:
    bench = job(2)
    assert bench.view.meeting == "file"
    apart = Bench({"a": 1, "b": 1}, workers=2)
    apart.hosts = {"a": "one", "b": "two"}
    apart.report_all()
    apart.report_all()
    apart.say(0, Phase.READY, address="one:1")
    apart.say(1, Phase.READY, address="two:2")
    assert apart.view.meeting == "tcp:one:1"


# -- losses --


def test_a_lost_member_makes_an_unplanned_view_of_the_others_at_once() -> None:
    bench = job(3)
    bench.gone(1)
    assert bench.view.workers == (0, 2)
    assert not bench.view.planned
    assert bench.notice(0).view == bench.view
    assert bench.workers() == [0, 2]


def test_a_lost_member_is_replaced_in_the_background() -> None:
    bench = job(2, restarts=1)
    bench.gone(1)
    assert bench.view.workers == (0,)
    assert bench.workers() == [0]
    bench.enter()
    assert bench.workers() == [0, 2]
    bench.ready(2)
    assert bench.view.planned
    assert bench.view.workers == (0, 2)


def test_leavers_of_a_torn_switch_get_their_seats_back_and_leave_later() -> None:
    bench = job(3)
    assert bench.ask("scale_in", workers=[2]) is None
    assert bench.view.leaving == (2,)
    bench.gone(1)
    assert not bench.view.planned
    assert bench.view.workers == (0, 2)
    assert not bench.notice(2).released
    bench.enter()
    assert bench.view.planned
    assert bench.view.workers == (0,)
    assert bench.view.leaving == (2,)


def test_the_loss_of_a_leaver_in_a_switch_tears_it_too() -> None:
    bench = job(3)
    bench.ask("scale_in", workers=[2])
    bench.gone(2)
    assert not bench.view.planned
    assert bench.view.workers == (0, 1)


def test_newcomers_of_a_torn_switch_keep_their_seats() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.gone(0)
    assert not bench.view.planned
    assert bench.view.workers == (1, 2)


def test_a_lost_agent_takes_its_workers_with_it_and_they_stay_gone() -> None:
    bench = job(2, {"a": 2, "b": 2})
    bench.take(bench.master.on_agent_lost("b", bench.now))
    assert bench.view.workers == (0,)
    bench.report("b")
    assert bench.view.workers == (0,)
    assert bench.orders["b"].workers == ()


def test_a_script_error_ends_the_job_with_its_sentence() -> None:
    bench = job(2)
    bench.gone(1, error="division by zero", exit_code=1)
    assert (bench.state.outcome, bench.state.text) == ("failed", "division by zero")
    assert bench.orders["a"].end == "failed"
    assert bench.workers() == []


def test_the_exit_code_of_an_error_is_the_one_that_was_told() -> None:
    bench = job(2)
    bench.say(1, error="virtual_workers=0 must be a whole number", exit_code=2)
    bench.gone(1, exit_code=-9)
    assert (bench.state.outcome, bench.state.failed) == ("failed", (1, 2))


def test_a_group_that_fails_with_nobody_gone_is_made_again_after_a_moment() -> None:
    bench = job(2)
    bench.say(0, broken=1)
    assert bench.view.generation == 1
    assert bench.outcome.wake_at == pytest.approx(0.5)
    bench.tick(0.6)
    assert bench.view.generation == 2
    assert not bench.view.planned
    assert bench.view.workers == (0, 1)


def test_a_broken_group_under_a_planned_view_is_noticed() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.say(0, broken=1)
    bench.tick(0.6)
    assert not bench.view.planned
    assert bench.view.workers == (0, 1, 2)


def test_a_torn_switch_of_everybody_never_has_more_seats_than_virtual_workers() -> None:
    bench = job(2, virtual_workers=2)
    bench.ask("migrate", worker=0)
    bench.ready(2)
    assert bench.view.workers == (1, 2)
    bench.say(1, broken=1)
    bench.tick(0.6)
    assert sorted(bench.view.workers) == [0, 1]
    assert 2 not in bench.workers()


# -- the end --


def test_done_when_all_seats_are_done() -> None:
    bench = job(2)
    bench.say(0, Phase.DONE, step=9, digest="x")
    assert not bench.state.outcome
    bench.say(1, Phase.DONE, step=9, digest="x")
    assert (bench.state.outcome, bench.state.digest) == ("done", "x")
    assert bench.orders["a"].end == "done"


def test_an_end_that_comes_with_the_last_words_counts() -> None:
    bench = job(1)
    bench.gone(0, step=9, digest="x", exit_code=0)
    assert (bench.state.outcome, bench.state.digest) == ("done", "x")


def test_the_exit_of_a_worker_that_is_done_is_no_loss() -> None:
    bench = job(2, restarts=2)
    bench.say(0, Phase.DONE, step=9, digest="x")
    bench.gone(0, exit_code=0)
    assert bench.view.generation == 1
    assert bench.state.restarts_left == 2


def test_the_rest_regroups_when_somebody_is_gone_after_another_is_done() -> None:
    bench = job(3)
    bench.say(0, Phase.DONE, step=9, digest="x")
    bench.gone(1)
    assert bench.view.workers == (2,)
    bench.gone(2)
    assert (bench.state.outcome, bench.state.digest) == ("done", "x")


def test_the_rest_regroups_when_it_does_not_follow() -> None:
    bench = job(2)
    bench.say(0, Phase.DONE, step=9, digest="x")
    bench.tick(1.0)
    assert bench.view.generation == 1
    bench.tick(1.1)
    assert bench.view.workers == (1,)


def test_different_final_states_are_told() -> None:
    bench = job(2)
    bench.say(0, Phase.DONE, step=9, digest="x")
    bench.say(1, Phase.DONE, step=9, digest="y")
    assert bench.state.outcome == "failed"
    assert "different states" in bench.state.text


# -- terms --


def test_a_new_master_gives_every_agent_its_orders_afresh_once_it_reports() -> None:
    bench = job(2, {"a": 1, "b": 1})
    bench.report_all()
    bench.master = Master.load(bench.master.dump(), fence=7)
    assert bench.tick(0.1).orders == {}
    outcome = bench.report("a")
    assert list(outcome.orders) == ["a"]
    assert outcome.orders["a"].fence == 7
    assert bench.orders["a"].workers[0].notice.view == bench.view


@pytest.mark.parametrize(
    ("what", "values"), [("scale_out", {"n": 1}), ("scale", {"n": 4}), ("scale_out", {"n": 1, "on": "b"})]
)
def test_a_new_master_refuses_nothing_for_want_of_slots_before_it_has_heard_every_agent(
    what: str, values: dict[str, object]
) -> None:
    bench = job(3, {"a": 2, "b": 2})
    bench.master = Master.load(bench.master.dump(), fence=7)
    bench.report("a")
    assert bench.ask(what, id="x", **values) is None
    bench.report("b")
    assert bench.agent_of(3) == "b"
    bench.ready(3)
    bench.enter()
    assert bench.answers["x"].ok


def test_a_device_that_is_wanted_back_moves_to_an_agent_that_a_new_master_has_not_heard_yet() -> None:
    bench = job(1, {"a": 1, "b": 1})
    bench.master = Master.load(bench.master.dump(), fence=7)
    bench.say(0, preempted=True)
    assert bench.state.phase is JobPhase.TRAINING
    bench.report("b")
    assert bench.agent_of(1) == "b"


def test_a_new_master_does_not_wait_without_end_for_an_agent_that_says_nothing() -> None:
    bench = job(3, {"a": 2, "b": 2})
    bench.master = Master.load(bench.master.dump(), fence=7)
    bench.report("a")
    assert bench.ask("scale_out", id="x", n=1) is None
    assert bench.outcome.wake_at == 10.0
    bench.tick(10.0)
    assert not bench.answers["x"].ok
    assert "the agents have 0 free slots" in bench.answers["x"].text


def test_orders_are_repeated_until_the_report_says_they_were_taken() -> None:
    bench = job(1)
    assert bench.report("a").orders == {}
    bench.orders["a"] = msgspec.structs.replace(bench.orders["a"], number=bench.orders["a"].number - 1)
    assert list(bench.report("a").orders) == ["a"]


def test_an_old_report_changes_nothing() -> None:
    bench = job(2)
    before = bench.master.dump()
    bench.statuses["a"][1] = msgspec.structs.replace(bench.statuses["a"][1], phase=Phase.GONE)
    bench.report("a", number=1)
    assert bench.master.dump() == before


def test_a_report_of_an_earlier_incarnation_changes_nothing() -> None:
    bench = job(2)
    bench.incarnations["a"], bench.numbers["a"] = 2, 0
    bench.report("a")
    before = bench.master.dump()
    bench.incarnations["a"] = 1
    bench.report("a", number=99)
    assert bench.master.dump() == before


def test_same_state_and_events_give_the_same_bytes() -> None:
    one, two = job(3), job(3)
    for bench in (one, two):
        bench.ask("scale_out", id="x", n=1)
        bench.gone(1)
    assert one.master.dump() == two.master.dump()


def test_facts_that_agents_repeat_are_not_worth_a_write() -> None:
    bench = job(2)
    assert not bench.say(0, step=5, busy_s=(0.1,)).dirty


# -- tables --


@pytest.mark.parametrize(("table", "members"), [(JOB_MOVES, JobPhase), (STAGE_MOVES, Stage), (WORKER_MOVES, Phase)])
def test_every_state_has_its_moves_listed(table: dict[object, object], members: type) -> None:
    assert set(table) == set(members)


def test_an_illegal_move_is_our_own_mistake() -> None:
    from melodeon.coord.master_state import Turn

    turn = Turn(job(1).state, 0.0)
    turn.move_job(JobPhase.ENDED)
    with pytest.raises(AssertionError, match="ended -> training"):
        turn.move_job(JobPhase.TRAINING)


def test_the_state_is_plain_json() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    assert msgspec.json.decode(bench.master.dump(), type=MasterState) == bench.state
