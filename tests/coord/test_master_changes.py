"""What people ask for, and what the master does by itself while the job trains."""

import pytest

from melodeon.coord.master_state import JobPhase
from melodeon.coord.messages import Phase
from tests.coord.master_bench import Bench, follow, job

# -- scale --


def test_scale_out_starts_workers_and_switches_when_they_are_ready() -> None:
    bench = job(2)
    assert bench.ask("scale_out", id="x", n=2) is None
    assert bench.workers() == [0, 1, 2, 3]
    bench.ready(2)
    assert bench.view.generation == 1
    bench.ready(3)
    assert bench.view.planned
    assert bench.view.workers == (0, 1, 2, 3)
    bench.enter(step=7)
    answer = bench.answers["x"]
    assert answer.ok
    assert answer.values["step"] == 7
    assert answer.values["pauses"] == {"0": 0.1, "1": 0.1}


def test_scale_in_releases_leavers_when_all_have_entered() -> None:
    bench = job(3)
    bench.ask("scale_in", id="x", workers=[0, 2])
    assert (bench.view.workers, bench.view.leaving) == ((1,), (0, 2))
    assert not bench.notice(0).released
    bench.enter()
    assert bench.notice(0).released
    assert bench.notice(2).released
    bench.gone(0, exit_code=0)
    bench.gone(2, exit_code=0)
    assert bench.view.generation == 2
    assert bench.answers["x"].ok


def test_leavers_stay_until_the_last_seat_has_entered() -> None:
    bench = job(3)
    bench.ask("scale_in", workers=[2])
    bench.enter(0)
    assert not bench.notice(2).released
    bench.enter(1)
    assert bench.notice(2).released


def test_leavers_stay_until_the_others_have_trained_a_step_without_them() -> None:
    bench = job(3)
    bench.ask("scale_in", workers=[2])
    bench.enter(pause_s=0.0)
    assert bench.state.settled == bench.view
    bench.say(0, pause_s=0.03)
    assert not bench.notice(2).released
    bench.say(1, pause_s=0.04)
    assert bench.notice(2).released


def test_leavers_stay_for_a_step_of_seconds_and_not_for_a_longer_one() -> None:
    bench = job(2)
    bench.ask("scale_in", workers=[1])
    bench.enter(pause_s=0.0)
    outcome = bench.tick(3.0)
    assert not bench.notice(1).released
    assert outcome.wake_at is not None
    bench.tick(outcome.wake_at - bench.now)
    assert bench.notice(1).released
    assert bench.now < 6.0


def test_who_was_let_go_is_not_asked_to_wait_for_the_next_view() -> None:
    bench = job(3)
    bench.ask("scale_in", workers=[2])
    bench.enter()
    assert bench.notice(2).released
    bench.ask("scale_in", workers=[1])
    bench.enter(pause_s=0.0)
    assert bench.notice(2).released
    assert not bench.notice(1).released


@pytest.mark.parametrize(("what", "values"), [("scale_out", {"n": 1}), ("scale", {"n": 2}), ("migrate", {})])
def test_a_slot_whose_leaver_is_still_ending_is_waited_for(what: str, values: dict[str, object]) -> None:
    bench = job(2, {"a": 2})
    bench.ask("scale_in", n=1)
    bench.enter()
    assert bench.ask(what, id="x", **values) is None, "not refused for want of a slot"
    assert bench.workers() == [0, 1]
    bench.gone(1, exit_code=0)
    assert bench.workers() == [0, 2]
    bench.ready(2)
    for _ in range(2):  # the only worker moves by way of a view of both
        bench.enter()
    assert bench.answers["x"].ok


@pytest.mark.parametrize(
    ("what", "values", "text"),
    [
        ("migrate", {"to": "b"}, "1 worker cannot move: agent b has fewer free slots; name another agent, or none"),
        ("scale_out", {"on": "b"}, "1 new worker cannot start: agent b has 0 free slots; name another agent, or none"),
        ("scale_out", {"on": "a", "n": 2}, "2 new workers cannot start: agent a has 1 free slot; add an agent"),
    ],
)
def test_who_names_a_full_agent_is_told_of_the_room_elsewhere(what: str, values: dict[str, object], text: str) -> None:
    bench = job(2, {"a": 2, "b": 1})
    answer = bench.ask(what, **values)
    assert answer is not None
    assert answer.text == text


def test_a_slot_that_nobody_is_about_to_leave_is_not_waited_for() -> None:
    bench = job(3, {"a": 3})
    answer = bench.ask("scale_out", n=1)
    assert answer is not None
    assert answer.text == "1 new worker cannot start: the agents have 0 free slots; add an agent"
    bench.ask("scale_in", n=1)
    bench.enter()
    answer = bench.ask("scale_out", n=2)
    assert answer is not None
    assert answer.text.startswith("2 new workers cannot start")


def test_a_released_worker_that_does_not_end_is_killed() -> None:
    bench = job(2)
    bench.ask("scale_in", n=1)
    bench.enter()
    bench.tick(31.0)
    assert bench.workers() == [0]


@pytest.mark.parametrize(
    ("what", "values", "words"),
    [
        ("scale_out", {"n": 9}, "at most 4"),
        ("scale_out", {"n": 0}, "at most 4 (4 virtual workers, at least one each); ask for 1 to 2 more"),
        ("scale_out", {"n": "two"}, "whole number"),
        ("scale_out", {"n": 1, "on": "z"}, "no agent 'z'"),
        ("scale_out", {"n": 1, "on": ""}, "on='' must be an agent's name, such as node0"),
        ("migrate", {"to": ""}, "to='' must be an agent's name, such as node0"),
        ("migrate", {"to": 0}, "to=0 must be an agent's name, such as node0"),
        ("scale_in", {"n": 2}, "at least 1 must stay"),
        ("scale_in", {"workers": [7]}, "worker 7 is not in the job"),
        ("scale_in", {"workers": []}, "names nobody"),
        ("scale_in", {"workers": [1, 1]}, "name each worker once"),
        ("scale_in", {"workers": [1.7]}, "list of whole numbers"),
        ("scale_in", {"workers": [True]}, "list of whole numbers"),
        ("scale_in", {"workers": "1"}, "list of whole numbers"),
        ("scale_in", {"workers": 0}, "list of whole numbers"),
        ("scale", {"n": 5}, "choose 1 to 4"),
        ("scale", {"n": 0}, "choose 1 to 4"),
        ("migrate", {"worker": 9}, "not in the job"),
        ("profile", {"min": 0, "max": 2}, "1 <= min"),
        ("fly", {}, "cannot be asked"),
    ],
)
def test_asks_out_of_range_are_answered_with_the_rule(what: str, values: dict[str, object], words: str) -> None:
    bench = job(2)
    answer = bench.ask(what, **values)
    assert answer is not None
    assert not answer.ok
    assert words in answer.text
    assert bench.view.generation == 1


def test_an_ask_that_is_repeated_has_one_effect_and_one_answer() -> None:
    bench = job(1)
    for _ in range(3):
        bench.ask("scale_out", id="x", n=1)
    assert bench.workers() == [0, 1]
    bench.ready(1)
    bench.enter()
    first = bench.answers["x"]
    assert bench.ask("scale_out", id="x", n=1) == first
    assert bench.workers() == [0, 1]
    assert bench.kinds().count("ask") == 1


def test_asks_run_one_after_another() -> None:
    bench = job(2)
    bench.ask("scale_out", id="x", n=1)
    bench.ask("scale_in", id="y", n=1)
    bench.ready(2)
    bench.enter()
    assert bench.answers["x"].ok
    assert (bench.view.workers, bench.view.leaving) == ((0, 1), (2,))
    bench.enter()
    assert bench.answers["y"].ok


def test_a_newcomer_that_fails_is_dropped_and_the_rest_of_the_change_goes_on() -> None:
    bench = job(1)
    bench.ask("scale_out", id="x", n=2)
    bench.gone(1, error="no module named foo")
    bench.ready(2)
    assert bench.view.workers == (0, 2)
    bench.enter()
    assert not bench.state.outcome


@pytest.mark.parametrize(("what", "n"), [("scale_out", 2), ("scale", 3)])
def test_a_size_that_was_not_reached_is_no_success(what: str, n: int) -> None:
    bench = job(1)
    bench.ask(what, id="x", n=n)
    bench.gone(1, error="no module named foo")
    bench.ready(2)
    bench.enter()
    assert not bench.answers["x"].ok
    assert bench.answers["x"].text == "New worker 1 could not join: no module named foo. The job has 2 workers."
    assert "change_failed" in bench.kinds()
    assert bench.state.wanted == 2


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize(("what", "n"), [("scale_out", 1), ("scale", 3)])
def test_a_newcomer_that_is_lost_on_its_way_into_the_view_counts_once(what: str, n: int, restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.ask(what, id="x", n=n)
    bench.ready(2)
    assert bench.view.workers == (0, 1, 2)
    bench.gone(2)
    bench.enter()
    assert bench.view.workers == (0, 1)
    assert not bench.answers["x"].ok
    assert (bench.state.wanted, bench.state.owed, bench.state.restarts_left) == (2, 0, restarts)


@pytest.mark.parametrize(("what", "n"), [("scale_out", 1), ("scale", 2)])
def test_a_change_of_which_nothing_is_left_fails_with_the_sentence(what: str, n: int) -> None:
    bench = job(1)
    bench.ask(what, id="x", n=n)
    bench.gone(1, error="no module named foo")
    assert not bench.answers["x"].ok
    assert "no module named foo" in bench.answers["x"].text
    assert "change_failed" in bench.kinds()
    assert bench.state.wanted == 1


def test_a_loss_of_somebody_else_is_not_the_wishs_failure() -> None:
    bench = job(2)
    bench.ask("scale", id="x", n=3)
    bench.gone(0)
    bench.enter()
    bench.ready(2)
    bench.enter()
    assert bench.view.workers == (1, 2)
    assert bench.answers["x"].ok
    assert "the job has 2 workers" in bench.answers["x"].text


def test_a_restart_whose_replacement_is_not_needed_any_more_is_there_for_a_later_loss() -> None:
    bench = job(3, {"a": 2, "b": 1}, restarts=1)
    (away,) = bench.statuses["b"]
    bench.gone(away)
    bench.slots["b"] = 0
    bench.report("b")
    bench.enter()
    bench.ask("scale", id="x", n=2)
    assert bench.answers["x"].ok
    bench.slots["b"] = 2
    bench.report("b")
    bench.tick(0.1)
    assert len(bench.workers()) == 2, "as many as were asked for last"
    assert (bench.state.wanted, bench.state.restarts_left) == (2, 1)
    bench.gone(bench.view.workers[1])
    bench.enter()
    assert len(bench.workers()) == 2
    assert (bench.state.wanted, bench.state.restarts_left) == (2, 0)


def test_a_change_that_could_not_be_carried_out_is_told_from_one_that_is_refused() -> None:
    bench = job(1)
    bench.ask("scale", id="refused", n=9)
    bench.ask("scale_out", id="failed", n=1)
    bench.gone(1, error="worker 1 ended with exit code 1", exit_code=1)
    bench.ask("profile", id="interrupted", min=1, max=2)
    bench.ask("scale", n=2)
    failed = {name: answer.failed for name, answer in bench.answers.items() if not answer.ok}
    assert failed == {"refused": False, "failed": True, "interrupted": True}
    text = "New worker 1 could not join: worker 1 ended with exit code 1, and `melodeon logs j --worker 1` shows why."
    assert bench.answers["failed"].text == text


def test_a_newcomer_with_another_definition_is_refused() -> None:
    bench = job(1)
    bench.ask("scale_out", id="x", n=1)
    bench.say(1, Phase.READY, definition="d loader0=1f")
    assert bench.view.workers == (0,)
    assert "worker 1 has another loader0 than the workers before it" in bench.answers["x"].text
    assert "must be the same everywhere" in bench.answers["x"].text
    assert bench.workers() == [0]


# -- migrate, preempt --


@pytest.mark.parametrize("stopped", [False, True])
def test_a_newcomer_that_fails_inside_the_switch_does_not_end_the_job(stopped: bool) -> None:
    """It has no room for the state, say: the others have it, and trained before it came."""
    bench = job(2)
    bench.ask("scale_out", id="x", n=1)
    bench.ready(2)
    bench.gone(2, error="no room for the state", exit_code=1)
    assert (bench.state.outcome, bench.view.workers) == ("", (0, 1))
    if stopped:
        bench.ask("stop")
    bench.enter()
    assert bench.state.outcome == ""
    assert not bench.answers["x"].ok
    assert stopped or "New worker 2 could not join: no room for the state" in bench.answers["x"].text


def test_a_newcomer_that_failed_inside_the_switch_does_not_end_a_job_that_starts_again_after_it() -> None:
    bench = job(2, {"a": 6}, restarts=2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.gone(2, error="ValueError: no", exit_code=1)
    bench.set(0, Phase.GONE)
    bench.gone(1)
    assert (bench.state.phase, bench.state.outcome) == (JobPhase.STARTING, "")
    bench.ready(3, 4)
    assert bench.view.workers == (3, 4)


def test_a_newcomer_that_fails_when_it_trains_ends_the_job_like_any_worker() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.enter(2)
    bench.gone(2, error="division by zero", exit_code=1)
    assert (bench.state.outcome, bench.state.text) == ("failed", "division by zero")


# -- checkpoint, stop, status --


def test_a_checkpoint_is_refused_where_the_script_keeps_none() -> None:
    bench = job(2)
    for worker in (0, 1):
        bench.say(worker, keeps=False)
    bench.ask("checkpoint", id="x")
    assert not bench.answers["x"].ok
    assert "job.checkpoint(folder, every=...)" in bench.answers["x"].text
    assert bench.notice(0).checkpoint == 0


def test_a_checkpoint_is_answered_when_a_member_has_written_it() -> None:
    bench = job(2)
    bench.ask("checkpoint", id="x")
    assert bench.notice(0).checkpoint == 1
    assert "x" not in bench.answers
    bench.say(0, checkpoint=1)
    assert bench.answers["x"].ok


def test_stop_ends_at_a_boundary() -> None:
    bench = job(2)
    bench.ask("stop", id="x")
    assert bench.notice(1).stop
    assert not bench.state.outcome
    bench.say(0, Phase.DONE, step=4, digest="x")
    bench.say(1, Phase.DONE, step=4, digest="x")
    assert bench.state.outcome == "stopped"
    assert bench.answers["x"].values["outcome"] == "stopped"
    late = bench.ask("stop", id="y")  # the job is still found while its launcher ends
    assert late is not None
    assert (late.ok, late.text, late.values) == (True, bench.answers["x"].text, bench.answers["x"].values)
    refused = bench.ask("scale", n=1)
    assert refused is not None
    assert not refused.ok


def test_a_job_that_is_stopped_while_it_starts_says_whether_it_has_trained() -> None:
    first = Bench(workers=1)
    first.report_all()
    first.ask("stop", id="x")
    assert first.answers["x"].text == "stopped before it began to train"
    again = job(1, restarts=1)
    again.gone(0)
    again.ask("stop", id="x")
    assert again.answers["x"].text == "stopped before it began to train again"


def test_losses_while_stopping_do_not_hold_it_up() -> None:
    bench = job(2, restarts=3)
    bench.ask("stop")
    bench.gone(0)
    assert bench.view.workers == (1,)
    bench.gone(1)
    assert bench.state.outcome == "stopped"


def test_status_tells_the_whole_job() -> None:
    bench = job(2)
    bench.say(1, step=5, busy_s=(0.1, 0.2, 0.3))
    answer = bench.ask("status")
    assert answer is not None
    values = answer.values
    assert (values["phase"], values["step"], values["generation"]) == ("training", 5, 1)
    assert [worker["ranks"] for worker in values["workers"]] == ["0-1", "2-3"]
    assert values["workers"][1]["busy_ms"] == 200.0
    assert values["history"][0]["reason"] == "the job starts"


def test_a_size_that_is_asked_for_ends_what_is_owed() -> None:
    bench = job(4, {"a": 2, "b": 2}, restarts=2)
    bench.take(bench.master.on_agent_lost("b", bench.now))
    for worker in bench.view.workers:
        bench.set(worker, Phase.MEMBER, generation=bench.view.generation)
    bench.report("a")
    assert (len(bench.view.workers), bench.state.owed) == (2, 2), "there are no slots for those who are to replace them"
    bench.ask("scale", n=2)
    assert (bench.state.owed, bench.state.restarts_left) == (0, 2)
    bench.gone(bench.view.workers[0])
    follow(bench)
    assert (len(bench.orders["a"].workers), bench.state.restarts_left) == (2, 1)
