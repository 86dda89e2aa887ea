"""A job that all who held its state are lost to begins again."""

from melodeon.coord.master_state import JobPhase
from melodeon.coord.messages import Phase
from tests.coord.master_bench import job


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
