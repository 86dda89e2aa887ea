"""A job that all who held its state are lost to begins again."""

import pytest

from melodeon.coord.master import Master
from melodeon.coord.master_state import JobPhase
from melodeon.coord.messages import Phase
from tests.coord.master_bench import follow, job


def test_all_lost_starts_again_cold_while_restarts_last() -> None:
    bench = job(2, restarts=2)
    bench.set(0, Phase.GONE)
    bench.gone(1)
    assert bench.state.phase is JobPhase.STARTING
    assert bench.workers() == [2, 3]
    bench.ready(2, 3)
    assert bench.view.generation == 2
    assert not bench.view.planned
    bench.set(2, Phase.GONE)
    bench.gone(3)
    assert bench.state.outcome == "failed"
    assert "--restarts" in bench.state.text


def test_a_job_that_went_on_with_fewer_than_it_needs_starts_again_with_as_many_as_it_needs() -> None:
    bench = job(2, min_workers=2, restarts=2)
    bench.say(1, preempted=True)
    bench.enter()
    bench.gone(1, exit_code=0)
    assert bench.view.workers == (0,)
    bench.gone(0)
    assert (bench.state.phase, bench.state.restarts_left) == (JobPhase.STARTING, 0)
    bench.ready(2, 3)
    assert bench.view.workers == (2, 3)


def test_a_job_starts_again_with_no_more_workers_than_were_wanted() -> None:
    bench = job(3, {"a": 2, "b": 1}, restarts=5)
    (away,) = bench.statuses["b"]
    bench.slots["b"] = 0
    bench.gone(away)
    bench.enter()
    bench.ask("scale", n=2)
    bench.set(bench.view.workers[0], Phase.GONE)
    bench.gone(bench.view.workers[1])
    assert (bench.state.phase, bench.state.wanted) == (JobPhase.STARTING, 2)
    assert (len(bench.workers()), bench.state.restarts_left) == (2, 3)


def test_a_job_that_starts_again_while_it_was_larger_for_a_profile_has_its_size_of_before() -> None:
    bench = job(1, restarts=5)
    bench.ask("profile", min=4, max=4)
    assert bench.workers() == [0, 1, 2, 3]
    bench.gone(0)
    assert (bench.state.phase, bench.state.wanted, bench.workers()) == (JobPhase.STARTING, 1, [1])
    assert bench.state.restarts_left == 5, "who was to be measured only takes the place of the lost one"


def test_a_restart_that_was_spent_on_a_replacement_is_not_lost_with_the_rest() -> None:
    bench = job(2, restarts=2)
    bench.gone(1)
    assert bench.workers() == [0], "its replacement waits for the new view"
    bench.gone(0)
    assert bench.state.phase is JobPhase.STARTING
    assert bench.workers() == [2, 3], "as many as if both had gone at once"
    assert bench.state.restarts_left == 0


def test_an_error_that_a_newcomer_has_told_before_its_end_does_not_end_a_job_that_starts_again() -> None:
    bench = job(1, restarts=2)
    bench.ask("scale_out", n=1)
    bench.say(1, error="boom", exit_code=1)
    bench.gone(0)
    assert (bench.state.phase, bench.state.outcome) == (JobPhase.STARTING, "")
    assert bench.workers() == [2, 3]
    bench.ready(2, 3)
    assert bench.view.workers == (2, 3)


def test_restarts_of_those_who_are_not_started_for_want_of_slots_are_left() -> None:
    bench = job(2, {"a": 1, "b": 1}, restarts=3)
    bench.take(bench.master.on_agent_lost("b", bench.now))
    bench.say(0, Phase.GONE)
    bench.statuses["b"] = {}
    bench.orders.pop("b")
    bench.tick(11.0)
    assert (len(bench.workers()), bench.state.restarts_left) == (1, 2)


@pytest.mark.parametrize(("workers", "restarts", "left"), [(4, 1, 0), (4, 3, 2), (3, 2, 1)])
def test_workers_that_a_profile_has_let_go_cost_no_restarts(workers: int, restarts: int, left: int) -> None:
    """They come back for nothing when it ends, too."""
    bench = job(workers, restarts=restarts)
    bench.ask("profile", id="x", min=1, max=4, steps=5)
    follow(bench)
    assert bench.view.workers == (0,)
    bench.gone(0)
    assert "all workers were lost" in bench.answers["x"].text
    assert (len(bench.workers()), bench.state.restarts_left, bench.state.wanted) == (workers, left, workers)


def test_newcomers_of_a_profile_take_the_places_of_those_whom_it_has_let_go() -> None:
    bench = job(4, restarts=1)
    bench.ask("profile", min=1, max=2, steps=5)
    follow(bench)
    for _ in range(20):
        if len(bench.workers()) > 1:
            break
        bench.now += 0.1
        bench.say(0, step=bench.state.workers[0].step + 1)
    assert bench.workers() == [0, 4], "it goes on to two"
    bench.gone(0)
    assert (bench.workers(), bench.state.restarts_left) == ([4, 5, 6, 7], 0)


def test_a_master_that_has_heard_nobody_yet_fails_no_job_for_want_of_slots() -> None:
    bench = job(1, {"a": 1, "b": 1}, restarts=1)
    home = bench.agent_of(0)
    bench.master = Master.load(bench.master.dump(), fence=2)
    bench.take(bench.master.on_agent_lost(home, bench.now))
    assert bench.state.phase is JobPhase.STARTING
    bench.now += 20.0  # it stood still; what it hears first is a wish
    bench.ask("scale", n=1)
    assert bench.state.outcome == ""
    bench.statuses[home] = {}
    bench.incarnations[home] += 1
    bench.numbers[home] = 0
    bench.orders.pop(home)
    bench.report_all()
    bench.ready(*bench.workers())
    assert len(bench.view.workers) == 1
