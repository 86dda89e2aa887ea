import math

import pytest

from melodeon.core.moments import LATEST, day_and_clock, local

DAY_S = 86_400.0


def test_another_day_is_named() -> None:
    assert len(day_and_clock(0.0, 0.0)) == len("22:10:05")
    assert len(day_and_clock(0.0, 10 * DAY_S)) == len("2026-12-01 22:10:05")


@pytest.mark.parametrize("at", [LATEST + 1, 1e12, 1e300, math.inf])
def test_what_lies_beyond_the_calendar_can_be_said(at: float) -> None:
    assert day_and_clock(at, 0.0) == "after the year 9999"
    assert local(at) == local(LATEST)
