import pytest
from _plans import Given, compare, errors, shares

LIVE = [Given(0.0, "a", 4), Given(5.0, "b", 4), Given(5.0, "a", 2), Given(20.0, "a", 4)]
ENDS = {"a": (30.0, 30.0), "b": (20.0, 20.0)}


def test_the_same_course_is_alike_in_every_way() -> None:
    found = compare(LIVE, LIVE, ENDS)
    assert (found.common, found.first, found.ratio, found.same_jobs, found.agreement) == (4, 4, 1.0, 2, 1.0)
    assert found.typical_s == 0.0


def test_the_order_inside_a_round_means_nothing() -> None:
    other = [LIVE[0], LIVE[2], LIVE[1], LIVE[3]]
    assert compare(LIVE, other, ENDS).first == 4


def test_decisions_that_come_later_are_the_same_and_apart() -> None:
    later = [Given(one.at_s + 0.5, one.job, one.workers) for one in LIVE]
    found = compare(LIVE, later, {"a": (30.0, 30.5), "b": (20.0, 20.5)})
    assert found.ratio == 1.0
    assert found.apart_s == pytest.approx([0.5] * 4)
    # Each job differs for half a second at each of its changes and at its end.
    assert found.agreement == pytest.approx(1 - (0.5 * 4 + 0.5 * 2) / (30.5 + 15.5))


def test_a_decision_of_one_course_alone_is_counted_once() -> None:
    more = [*LIVE[:3], Given(12.0, "a", 1), *LIVE[3:]]
    found = compare(LIVE, more, ENDS)
    assert (found.common, found.first, found.same_jobs, found.jobs) == (4, 3, 1, 2)
    assert found.ratio == pytest.approx(8 / 9)
    assert found.agreement == pytest.approx(1 - 8 / 45)


def test_shares_of_a_job_come_in_order() -> None:
    assert shares(LIVE, "a") == [4, 2, 4]


def test_errors_are_parts_of_the_first_time_and_leave_out_who_was_not_done() -> None:
    assert errors({"a": 100.0, "b": 50.0, "c": 10.0}, {"a": 103.0, "b": 49.0}) == pytest.approx({"a": 0.03, "b": -0.02})
