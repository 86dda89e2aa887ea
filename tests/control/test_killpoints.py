"""A sample of the points at which a controller may die; all of them: `python -m tests.control.killpoints`."""

import pytest

from melodeon.control.points import POINTS
from tests.control.killpoints import one

SAMPLE = [
    ("store.append.written", 4),
    ("control.store.after", 6),
    ("control.launch.before", 2),
    ("control.stop.after", 1),
]


@pytest.mark.parametrize(("point", "nth"), SAMPLE)
def test_a_killed_controller_loses_nothing_and_runs_nothing_twice(point: str, nth: int) -> None:
    assert point in POINTS
    books = one(point, nth)
    assert books.kills >= 1
    assert books.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_every_point(point: str) -> None:
    assert one(point, 2).wrong == []
