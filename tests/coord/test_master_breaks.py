"""Views that cannot be entered though nobody is gone."""

import pytest

from melodeon.coord.master_state import JobPhase
from tests.coord.master_bench import Bench, job


def break_up(bench: Bench, worker: int) -> None:
    """The worker cannot enter the newest view, and nobody is gone for a moment."""
    bench.say(worker, broken=bench.view.generation)
    bench.tick(0.6)


@pytest.mark.parametrize("teller", [0, 2])
def test_a_newcomer_that_cannot_be_reached_holds_nobody_up_and_has_one_more_try(teller: int) -> None:
    bench = job(2)
    bench.ask("scale_out", id="x", n=1)
    bench.ready(2)
    assert bench.view.workers == (0, 1, 2)
    break_up(bench, teller)
    assert (bench.view.workers, bench.view.planned) == ((0, 1), False)
    assert bench.workers() == [0, 1, 2], "a death that nobody has seen yet may have been the reason"
    bench.enter()
    assert (bench.view.workers, bench.view.planned) == ((0, 1, 2), True)
    break_up(bench, teller)
    assert (bench.view.workers, bench.view.planned) == ((0, 1), False)
    assert bench.workers() == [0, 1]
    bench.enter()
    assert not bench.answers["x"].ok
    assert "New worker 2 could not join" in bench.answers["x"].text
    assert "reach each other" in bench.answers["x"].text
    assert (bench.view.workers, bench.view.planned, bench.state.wanted) == ((0, 1), False, 2)
    assert bench.kinds().count("broken") == 2


def test_it_joins_by_its_second_try() -> None:
    bench = job(2)
    bench.ask("scale_out", id="x", n=1)
    bench.ready(2)
    break_up(bench, 0)
    bench.enter()
    bench.enter()
    assert bench.answers["x"].ok
    assert bench.view.workers == (0, 1, 2)


def test_it_holds_nobody_up_either_where_a_loss_gave_it_its_seat() -> None:
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.gone(1)
    assert (bench.view.workers, bench.view.planned) == ((0, 2), False)
    break_up(bench, 0)
    assert bench.view.workers == (0,)
    bench.enter()
    assert (bench.view.workers, bench.view.planned) == ((0, 2), True)
    break_up(bench, 0)
    assert bench.view.workers == (0,)
    assert bench.workers() == [0]


def test_one_that_has_entered_the_view_keeps_its_seat() -> None:
    """It may have trained a step in it that is not to be lost."""
    bench = job(2)
    bench.ask("scale_out", n=1)
    bench.ready(2)
    bench.enter(0, 2)
    break_up(bench, 0)
    assert (bench.view.workers, bench.view.planned) == ((0, 1, 2), False)


def test_replacements_that_cannot_be_reached_end_with_the_restarts() -> None:
    bench = job(2, restarts=2)
    bench.gone(1)
    bench.enter()
    for newcomer in (2, 3):
        assert bench.workers() == [0, newcomer]
        bench.ready(newcomer)
        for _ in range(2):
            break_up(bench, 0)
            assert bench.view.workers == (0,)
            bench.enter()
        bench.tick(0.1)
    assert bench.workers() == [0]
    assert (bench.state.phase, bench.state.restarts_left) == (JobPhase.TRAINING, 0)


def test_who_cannot_be_replaced_by_a_successor_stays() -> None:
    bench = job(2)
    bench.ask("migrate", id="x", worker=0)
    bench.ready(2)
    for _ in range(2):
        break_up(bench, 1)
        assert set(bench.view.workers) == {0, 1}
        bench.enter()
    assert not bench.answers["x"].ok
    assert (set(bench.view.workers), bench.workers(), bench.state.wanted) == ({0, 1}, [0, 1], 2)


@pytest.mark.parametrize(
    ("what", "values"),
    [("scale_in", {"workers": [2]}), ("scale", {"n": 2}), ("place", {"slots": {"a": [0, 1]}})],
)
def test_a_view_without_newcomers_that_cannot_be_connected_is_given_up(what: str, values: dict[str, object]) -> None:
    bench = job(3, restarts=1)
    bench.ask(what, id="x", **values)
    for _ in range(2):
        assert (bench.view.workers, bench.view.planned) == ((0, 1), True)
        break_up(bench, 0)
        assert (bench.view.workers, bench.view.planned) == ((0, 1, 2), False)
        bench.enter()
    assert not bench.answers["x"].ok
    assert "could not be entered" in bench.answers["x"].text
    assert "The job has 3 workers" in bench.answers["x"].text
    assert (bench.view.workers, bench.view.planned, bench.state.wanted) == ((0, 1, 2), False, 3)
    assert bench.state.slots == ({"a": [0, 1, 2]} if what == "place" else {})
    bench.gone(1)
    bench.enter()
    assert bench.workers() == [0, 2, 3], "the wish is over, and a lost worker is replaced"


def test_a_worker_that_cannot_follow_the_others_into_the_first_view_keeps_its_seat() -> None:
    """No change would give it another, and its slot would be taken for good."""
    bench = Bench(workers=3, restarts=1)
    bench.report_all()
    bench.ready(0, 1, 2)
    bench.enter(0)
    break_up(bench, 1)
    assert (bench.view.workers, bench.view.planned) == ((0, 1, 2), False)
    bench.gone(2)  # this had been the reason
    bench.enter()
    assert bench.view.workers == (0, 1)
    assert bench.workers() == [0, 1, 3], "the lost one is replaced"


def test_newcomers_that_are_the_only_ones_left_keep_their_seats() -> None:
    bench = job(1)
    bench.ask("scale_out", n=2)
    bench.ready(1, 2)
    break_up(bench, 1)
    bench.enter()
    assert (bench.view.workers, bench.view.planned) == ((0, 1, 2), True)
    bench.gone(0)
    assert bench.view.workers == (1, 2)
    break_up(bench, 1)
    assert (bench.view.workers, bench.workers()) == ((1, 2), [1, 2])


def test_a_job_that_has_not_begun_needs_all_its_workers() -> None:
    bench = Bench(workers=2)
    bench.report_all()
    bench.ready(0, 1)
    for _ in range(3):
        break_up(bench, 0)
        assert (bench.view.workers, bench.view.planned) == ((0, 1), False)
    assert bench.kinds().count("broken") == 1, "it is told once"
