"""Hybrid scaling decides as the algorithm says, and the rate is a pure function of the recorded history."""

import pytest

from melodeon.coord.hybrid import best_size, decide, rate_at, rate_factor

CURVES = {
    1: {1: 100.0, 2: 180.0, 4: 200.0, 8: 150.0},
    2: {1: 110.0, 2: 200.0, 4: 340.0, 8: 350.0},
    4: {1: 115.0, 2: 210.0, 4: 380.0, 8: 640.0, 16: 700.0},
}


def test_the_batch_is_kept_while_more_workers_help_it() -> None:
    assert best_size(CURVES[1]) == 4
    assert decide(CURVES, 1, 2, 4).factor == 1


def test_the_batch_is_doubled_when_they_do_not() -> None:
    decision = decide(CURVES, 1, 4, 8)
    assert decision.factor == 2
    assert "fastest with 4 workers" in decision.why


def test_it_is_doubled_as_often_as_needed_but_no_worker_gets_more_than_before() -> None:
    assert decide(CURVES, 1, 2, 16).factor == 4
    assert decide(CURVES, 1, 8, 16).factor == 2
    assert decide(CURVES, 1, 12, 16).factor == 1


def test_it_starts_from_the_present_factor_and_stops_at_the_largest_allowed() -> None:
    assert decide(CURVES, 2, 8, 16).factor == 4
    assert decide(CURVES, 2, 8, 16, max_factor=2).factor == 2


@pytest.mark.parametrize(
    ("old_size", "new_size", "max_factor", "why"),
    [
        (4, 7, 64, "4 to 7 workers is less than twice as many: the batch is kept"),
        (4, 8, 1, "the batch may be at most 1 times the first: it is kept"),
        (2, 4, 64, "the present batch still gains up to 4 workers: it is kept"),
    ],
)
def test_why_a_batch_is_kept_is_true(old_size: int, new_size: int, max_factor: int, why: str) -> None:
    decision = decide(CURVES, 1, old_size, new_size, max_factor)
    assert (decision.factor, decision.why) == (1, why)


def test_shrinking_and_unknown_curves_keep_the_batch() -> None:
    assert decide(CURVES, 2, 8, 4).factor == 2
    assert decide({}, 1, 1, 8).factor == 1
    assert "no scaling curve" in decide({}, 1, 1, 8).why


@pytest.mark.parametrize(
    ("curve", "old_size", "new_size"),
    [({1: 10.0, 2: 20.0, 4: 40.0}, 2, 8), ({2: 20.0}, 2, 4), ({1: 5.0, 2: 6.0}, 2, 4)],
)
def test_a_batch_that_was_not_measured_with_enough_workers_is_kept(
    curve: dict[int, float], old_size: int, new_size: int
) -> None:
    decision = decide({1: curve}, 1, old_size, new_size)
    assert decision.factor == 1
    assert f"still gains at {max(curve)} workers, and more were not measured" in decision.why


def test_a_curve_that_has_levelled_out_was_measured_with_enough_workers() -> None:
    assert decide({1: {1: 10.0, 2: 15.0, 4: 15.2}}, 1, 4, 8).factor == 2


def test_of_larger_batches_the_first_that_may_do_is_taken() -> None:
    curves = {1: {1: 9.0, 2: 8.0}, 2: {1: 9.0, 2: 18.0}, 4: {1: 9.0, 2: 18.0, 8: 60.0}}
    assert decide(curves, 1, 1, 8).factor == 2


def test_the_rate_moves_linearly() -> None:
    assert [rate_factor(step, 1.0, 2.0, 10, 4) for step in (9, 10, 12, 14, 99)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert rate_factor(10, 1.0, 2.0, 10, 0) == 2.0


def test_a_change_in_the_middle_of_a_ramp_goes_on_from_there() -> None:
    history = [(10, 2), (15, 4)]
    assert rate_at(5, history, 10) == 1.0
    assert rate_at(15, history, 10) == pytest.approx(1.5)
    assert rate_at(20, history, 10) == pytest.approx(2.75)
    assert rate_at(25, history, 10) == 4.0
