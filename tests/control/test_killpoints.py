"""A sample of the points at which a controller may die; all of them: `python -m tests.control.killpoints`.

With real jobs: `python -m tests.control.killpoints_real`. Here only how it spreads its kills and keeps its books.
"""

from collections import Counter

import msgspec
import pytest

from melodeon.control.points import POINTS
from tests.control.killpoints import PASSED, one
from tests.control.killpoints_books import Books
from tests.control.killpoints_jobs import Op, Said
from tests.control.killpoints_real import KILLS_A_RUN, Report, dealt, enumerated, hands_of

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
@pytest.mark.parametrize("point", PASSED)
def test_every_point(point: str) -> None:
    assert one(point, 2).wrong == []


def test_kills_are_spread_evenly_over_names_and_times() -> None:
    passed = dict.fromkeys(POINTS, 30) | {"control.profile.before": 3, "control.kill.after": 0}
    points = enumerated(passed, 200)
    assert len(set(points)) == len(points) == 200
    by_name = Counter(name for name, _ in points)
    assert by_name.keys() == set(POINTS) - {"control.kill.after"}
    assert by_name.pop("control.profile.before") == 3
    assert max(by_name.values()) - min(by_name.values()) <= 1
    assert Counter(enumerated({"control.adopt": 2}, 5)) == {("control.adopt", 1): 3, ("control.adopt", 2): 2}
    assert enumerated({}, 200) == []


def test_each_run_kills_at_as_many_points_and_at_every_name() -> None:
    points = enumerated(dict.fromkeys(POINTS, 30), 200)
    runs = dealt(points)
    assert sorted(point for run in runs for point in run) == sorted(points)
    assert {len(run) for run in runs} == {KILLS_A_RUN}
    assert all({name for name, _ in run} == set(POINTS) for run in runs)
    assert all("snapshot" in run[0][0] for run in runs)
    assert len({run[-1] for run in runs}) == len(runs)
    assert [len(run) for run in dealt(points[:40])] == [20, 20]


def test_points_that_were_not_reached_are_followed_by_others() -> None:
    report = Report()
    hands = hands_of(dict.fromkeys(POINTS, 30), 200, report)
    for _ in range(200 // KILLS_A_RUN):
        hit, *missed = next(hands)
        report.missed.append(hit)
        report.killed += missed
    tried = {*report.killed, *report.missed}
    (others,) = list(hands)
    assert len(others) == len(report.missed)
    assert not tried & set(others)
    assert list(hands_of({}, 200, Report())) == []


def test_what_was_asked_and_not_answered_is_open_and_may_be_so_or_not() -> None:
    books = Books()
    submit, edit = Op("submit", 2, "edited"), Op("edit", 2, {"steps": 30})
    said = [Said("asked", submit), Said("told", submit, "job2-1"), Said("asked", edit)]
    books.read(b"".join(msgspec.json.encode(line) + b"\n" for line in said))
    assert (books.names, books.pending, books.next) == ({2: "job2-1"}, [edit], 3)
    assert books.values[2, "steps"] == [20, 30]
    books.read(msgspec.json.encode(Said("asked", edit)) + b"\n" + msgspec.json.encode(Said("told", edit, "job2-1")))
    assert books.pending == []
    assert books.values[2, "steps"] == [30]
