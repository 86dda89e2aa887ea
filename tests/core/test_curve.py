import pytest

from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError


def test_rates_are_interpolated_between_points_and_stay_past_the_last() -> None:
    curve = ScalingCurve(((1, 1.0), (2, 1.5), (4, 2.0)))
    assert [curve.rate(n) for n in (0, 1, 2, 3, 4, 9)] == [0.0, 1.0, 1.5, 1.75, 2.0, 2.0]


def test_a_scattered_job_follows_its_own_curve() -> None:
    curve = ScalingCurve(((1, 1.0), (2, 1.8)), spread=((1, 1.0), (2, 1.2)))
    assert (curve.rate(2), curve.rate(2, scattered=True)) == (1.8, 1.2)


def test_the_ladder_has_only_steps_that_make_the_job_faster() -> None:
    ladder = ScalingCurve(((1, 46.9), (2, 37.6), (4, 56.3), (8, 23.2))).ladder()
    assert ladder.levels == (1, 4)
    assert [ladder.rate(n) for n in (0, 1, 3, 4, 100)] == [0.0, 46.9, 46.9, 56.3, 56.3]


def test_the_ladder_keeps_to_the_bounds() -> None:
    curve = ScalingCurve.linear(2.0, 16)
    assert curve.ladder(2, 8).levels == (2, 4, 8)
    assert curve.ladder(3, 8).levels == (3, 4, 8)


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((1, 0.0),), ((1, float("nan")),), ((2, 1.0), (1, 1.0))])
def test_a_curve_that_makes_no_sense_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(UsageError):
        ScalingCurve(points)
