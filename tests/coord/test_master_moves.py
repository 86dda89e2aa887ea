"""Workers that move, because somebody wants it or since their device is wanted back."""

import pytest

from melodeon.coord.master_state import JobPhase
from melodeon.coord.messages import Phase
from tests.coord.master_bench import follow, job


def test_migrate_is_one_view() -> None:
    bench = job(2, {"a": 2, "b": 2})
    bench.ask("migrate", id="x", worker=0, to="b")
    assert bench.agent_of(2) == "b"
    bench.ready(2)
    assert (bench.view.workers, bench.view.leaving) == ((1, 2), (0,))
    bench.enter()
    assert bench.answers["x"].ok


def test_a_worker_whose_successor_is_lost_stays() -> None:
    bench = job(2, {"a": 2, "b": 2})
    bench.ask("migrate", id="x", worker=0, to="b")
    bench.ready(2)
    bench.gone(2)
    assert set(bench.view.workers) == {0, 1}
    bench.enter()
    assert set(bench.view.workers) == {0, 1}
    assert not bench.answers["x"].ok
    assert "New worker 2 could not join" in bench.answers["x"].text


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_successor_that_is_lost_on_its_way_into_the_view_costs_nothing(restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.ask("migrate", worker=0)
    bench.ready(2)
    bench.gone(2)
    bench.enter()
    assert set(bench.view.workers) == {0, 1}
    assert (bench.state.wanted, bench.state.owed, bench.state.restarts_left) == (2, 0, restarts)


def test_the_only_worker_moves_by_way_of_a_view_of_both() -> None:
    bench = job(1)
    bench.ask("migrate", id="x", worker=0)
    bench.ready(1)
    assert bench.view.workers == (0, 1)
    bench.enter()
    assert (bench.view.workers, bench.view.leaving) == ((1,), (0,))
    bench.enter()
    assert bench.answers["x"].ok


def test_a_loss_while_some_have_entered_the_view_and_their_predecessors_still_wait_leaves_a_seat_for_each() -> None:
    """More workers than virtual workers hold the state then."""
    bench = job(4, {"a": 4, "b": 4})
    bench.ask("place", id="x", slots={"a": [0, 2], "b": [1, 3]})
    bench.ready(4, 5)
    stays, other = bench.view.workers[:2]
    gone = sorted({0, 1, 2, 3} - {stays, other})
    assert (bench.view.workers, bench.view.leaving) == ((stays, other, 4, 5), tuple(gone))
    bench.enter(4, 5)
    bench.gone(stays)
    assert (bench.view.workers, bench.view.planned) == ((other, 4, 5, gone[0]), False)
    assert gone[1] in bench.workers(), "it holds the state until all have entered"
    bench.enter()
    assert bench.notice(gone[1]).released
    assert (bench.view.workers, bench.view.leaving) == ((other, 4, 5), (gone[0],))
    bench.enter()
    assert not bench.answers["x"].ok
    for worker in gone:
        bench.gone(worker, exit_code=0)
    assert bench.workers() == [other, 4, 5]


def test_a_job_of_one_virtual_worker_cannot_move() -> None:
    answer = job(1, virtual_workers=1).ask("migrate", worker=0)
    assert answer is not None
    assert "virtual_workers=1" in answer.text


def test_a_preempted_worker_leaves_before_anything_else() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.say(0, preempted=True)
    assert (bench.view.workers, bench.view.leaving) == ((1,), (0,))
    bench.enter()
    assert bench.notice(0).released
    bench.ready(2)
    assert bench.view.workers == (1, 2)


def test_the_only_worker_moves_when_it_is_preempted_and_stops_when_it_cannot() -> None:
    bench = job(1)
    bench.say(0, preempted=True)
    assert bench.workers() == [0, 1]
    alone = job(1, {"a": 1})
    alone.say(0, preempted=True)
    assert alone.notice(0).stop
    alone.say(0, Phase.DONE, step=3, digest="x")
    assert alone.state.outcome == "stopped"


def test_of_several_that_are_preempted_at_once_as_many_move_as_there_is_room_for() -> None:
    bench = job(2, {"a": 3})
    bench.set(0, preempted=True)
    bench.set(1, preempted=True)
    bench.report("a")
    assert bench.workers() == [0, 1, 2]
    bench.ready(2)
    assert bench.view.workers == (0, 2)
    bench.enter()
    assert (bench.view.workers, bench.view.leaving) == ((2,), (0,))
    bench.enter()
    assert (bench.state.phase, bench.state.wanted) == (JobPhase.TRAINING, 1)
    assert bench.notice(0).released
    assert bench.notice(1).released


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lost_successor_of_one_that_must_leave_is_replaced_where_restarts_are_left(restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.set(0, preempted=True)
    bench.set(1, preempted=True)
    bench.report("a")
    assert bench.workers() == [0, 1, 2, 3]
    bench.gone(2)
    bench.ready(3)
    for _ in range(4):
        follow(bench)
    assert bench.workers() == ([3, 4] if restarts else [3])
    assert (bench.state.wanted, bench.state.restarts_left) == (1 + restarts, 0)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_worker_that_is_preempted_while_its_successor_starts_is_not_counted_twice(restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.ask("migrate", id="x", worker=0)
    bench.say(0, preempted=True)
    assert (bench.view.workers, bench.view.leaving) == ((1,), (0,))
    bench.enter()
    bench.gone(0, exit_code=0)
    bench.ready(2)
    bench.enter()
    assert (bench.view.workers, bench.state.wanted) == ((1, 2), 2)
    assert bench.answers["x"].ok
    bench.gone(1)
    bench.enter()
    assert bench.workers() == ([2, 3] if restarts else [2]), "a lost worker is replaced where restarts are left"
    assert (bench.state.wanted, bench.state.restarts_left) == (1 + restarts, 0)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_successor_that_is_lost_after_its_predecessor_has_left_is_a_loss(restarts: int) -> None:
    bench = job(2, restarts=restarts)
    bench.ask("migrate", id="x", worker=0)
    bench.say(0, preempted=True)
    bench.enter()
    bench.gone(0, exit_code=0)
    bench.gone(2)
    assert not bench.answers["x"].ok
    bench.tick(0.1)
    assert bench.workers() == ([1, 3] if restarts else [1])
    assert (bench.state.wanted, bench.state.restarts_left) == (1 + restarts, 0)


def test_the_only_worker_that_is_moving_already_when_it_is_preempted_goes_on_moving() -> None:
    bench = job(1, {"a": 2})
    bench.ask("migrate", id="x", worker=0)
    bench.say(0, preempted=True)
    assert not bench.notice(0).stop, "the slot that it moves to was taken for one that somebody else has"
    bench.ready(1)
    bench.enter()
    bench.enter()
    assert bench.answers["x"].ok
    assert (bench.view.workers, bench.state.wanted, bench.state.phase) == ((1,), 1, JobPhase.TRAINING)


def test_of_two_that_are_preempted_the_one_that_is_moving_already_holds_the_state() -> None:
    bench = job(2, {"a": 3})
    bench.ask("migrate", worker=0)
    bench.set(0, preempted=True)
    bench.say(1, preempted=True)
    assert (bench.view.workers, bench.view.leaving) == ((0,), (1,))
    bench.enter()
    bench.ready(2)
    bench.enter()
    bench.enter()
    assert (bench.view.workers, bench.state.wanted, bench.state.phase) == ((2,), 1, JobPhase.TRAINING)


def test_a_worker_that_is_lost_while_its_move_stands_aside_has_its_successor_and_costs_no_restart() -> None:
    bench = job(3, restarts=1)
    bench.ask("migrate", id="x", worker=0)
    bench.say(1, preempted=True)
    bench.gone(0)
    bench.enter()
    bench.ready(3)
    bench.enter()
    assert set(bench.view.workers) == {2, 3}
    assert (bench.state.wanted, bench.state.owed, bench.state.restarts_left) == (2, 0, 1)
