from dataclasses import replace

import pytest

from melodeon.control.web import views, words
from melodeon.control.web.charts import chart_data
from melodeon.core.service import (
    Device,
    JobInfo,
    NodeInfo,
    Overview,
    Phase,
    Series,
    Span,
    WhatIf,
    WhatIfJob,
)

NOW = 1_700_000_000.0


def info(phase: Phase = Phase.RUNNING, **fields: object) -> JobInfo:
    given = {"submitted_at": NOW - 100, "step": 25, "total_steps": 100, "workers": 2, "max_workers": 8} | fields
    return JobInfo(id="cnn-3", name="cnn", user="ann", phase=phase, **given)  # type: ignore[arg-type]


def test_a_finish_is_told_against_the_deadline() -> None:
    row = views.row_of(info(deadline_at=NOW + 60, planned_finish_at=NOW + 48), NOW)
    assert (row.finish, row.tone, row.percent) == ("12 s to spare", "good", 25.0)
    row = views.row_of(info(deadline_at=NOW + 60, planned_finish_at=NOW + 180), NOW)
    assert (row.finish, row.tone) == ("2 min late", "bad")
    row = views.row_of(info(deadline_at=NOW - 60, planned_finish_at=NOW - 70), NOW)
    assert (row.finish, row.tone) == ("1 min late", "bad"), "it is not done yet"
    row = views.row_of(info(Phase.DONE, deadline_at=NOW - 60, finished_at=NOW - 70), NOW)
    assert (row.finish, row.tone) == ("10 s to spare", "good")
    row = views.row_of(info(Phase.WAITING, deadline_at=NOW + 60), NOW)
    assert (row.finish_at, row.finish) == (None, "due in 1 min")
    row = views.row_of(info(Phase.PROFILING, deadline_at=NOW + 60, planned_finish_at=NOW + 180), NOW)
    assert (row.finish_at, row.finish, row.tone) == (NOW + 180, "due in 1 min", ""), "it is not judged yet"
    assert views.row_of(info(), NOW).finish == "no deadline"
    row = views.row_of(info(Phase.REJECTED, deadline_at=NOW, earliest_deadline_at=NOW + 20), NOW)
    assert (row.finish, row.tone) == ("2 min would be accepted", "bad")
    assert views.row_of(info(total_steps=None), NOW).percent is None


def test_tiles_count_what_is_away_and_at_risk() -> None:
    phases = {phase.value: 0 for phase in Phase} | {"running": 2, "waiting": 3, "profiling": 2, "done": 9}
    overview = Overview(now=NOW, policy="edf", num_devices=8, devices_up=6, devices_used=3, jobs=phases)
    deadlines = [
        views.Deadline(job="a-1", deadline_at=NOW + 10, planned_at=NOW + 5),
        views.Deadline(job="b-2", deadline_at=NOW + 10, planned_at=NOW + 15),
        views.Deadline(job="c-3", deadline_at=NOW - 1, planned_at=None),
    ]
    found = {tile.label: tile for tile in views.tiles(overview, 0.25, 900, deadlines, held=3)}
    assert found["Devices in use"].value == "3 of 8"
    assert found["Devices in use"].note == "2 devices down or drained"
    assert found["Utilisation now"].value == "50%"
    assert found["Queue"].value == "4"
    assert found["Queue"].note == "3 jobs on devices", "one of those that are measured waits for a device"
    assert (found["Deadlines at risk"].value, found["Deadlines at risk"].note) == ("2", "b-2, c-3")


def test_use_is_the_mean_over_the_window() -> None:
    two = tuple(Device(node="n", index=index, type="cpu") for index in (0, 1))
    spans = [
        Span(job="a-1", devices=two, began_at=NOW - 50, ended_at=NOW - 10),
        Span(job="b-2", devices=two[:1], began_at=NOW - 10),
    ]
    assert views.used_share(spans, 2, NOW - 20, NOW) == pytest.approx((2 * 10 + 1 * 10) / 40)
    assert views.used_share(spans, 0, NOW - 20, NOW) is None
    assert views.used_share(spans, 2, NOW, NOW) is None


def test_racks_keep_the_order_of_nodes() -> None:
    nodes = [NodeInfo(id=name, type="cpu", rack=rack) for name, rack in (("n2", "b"), ("n1", "a"), ("n0", "b"))]
    assert [(rack, [node.id for node in some]) for rack, some in views.racks(nodes)] == [
        ("a", ["n1"]),
        ("b", ["n2", "n0"]),
    ]


def test_worlds_are_compared_job_by_job() -> None:
    def world(policy: str, *jobs: tuple[str, float | None, bool | None]) -> WhatIf:
        made = tuple(
            WhatIfJob(id=name, admitted=end is not None, why="", finish_at=end, deadline_at=NOW, in_time=kept)
            for name, end, kept in jobs
        )
        return WhatIf(policy=policy, jobs=made, makespan_s=5, mean_jct_s=None, deadlines_met=1, deadlines=2, rejected=0)

    now = world("edf", ("a-1", NOW, True), ("b-2", NOW + 60, False))
    then = world("fifo", ("a-1", NOW + 60, False), ("b-2", NOW, True), ("c-new", None, False))
    found = views.compared(now, then)
    assert [(row.change, row.tone) for row in found] == [
        ("1 min later", "bad"),
        ("1 min earlier", "good"),
        ("would be turned away", "bad"),
    ]
    assert views.figures(now, then)[0] == views.Figure(name="Policy", now="edf", then="fifo")
    assert views.figures(now, replace(then, makespan_s=None))[-1].then == "never"


def test_charts_have_equal_columns_and_end_now() -> None:
    columns = {
        "step": (10.0, 20.0, 15.0, 20.0),
        "at": (NOW - 40, NOW - 30, NOW - 20, NOW - 10),
        "loss": (1.0, float("nan"), 0.7, 0.5),
        "acc": (None, 0.1, 0.2, 0.3),
        "workers_at": (NOW - 50, NOW - 25),
        "workers": (2.0, 4.0),
        "pause_at": (NOW,),
        "pause_s": (1.0,),
    }
    job = info(deadline_at=NOW + 100, planned_finish_at=NOW + 30, started_at=NOW - 50)
    data = chart_data(job, Series(columns=columns), NOW)
    assert data["metrics"] == {
        "names": ["loss", "acc"],
        "step": [10.0, 15.0, 20.0],
        "values": [[1.0, 0.7, 0.5], [None, 0.2, 0.3]],
    }
    assert data["workers"] == {"at": [NOW - 50, NOW - 25, NOW], "count": [2.0, 4.0, 4.0]}
    burn = data["burn"]
    assert len({len(column) for column in burn.values()}) == 1
    at = burn["at"].index(NOW)
    assert (burn["left"][at], burn["plan"][at]) == (75.0, 75.0)
    assert burn["line"][0] == 100.0
    assert burn["line"][burn["at"].index(NOW)] == pytest.approx(50.0)
    assert burn["plan"][burn["at"].index(NOW + 30)] == 0.0
    assert data["pauses"] == {"at": (NOW,), "s": (1.0,)}


def test_charts_of_a_job_that_has_not_begun_are_empty() -> None:
    data = chart_data(info(Phase.WAITING, total_steps=None, step=0), Series(), NOW)
    assert data["metrics"]["names"] == []
    assert data["burn"]["at"] == data["workers"]["at"] == []
    assert not data["pauses"]["at"]


def test_words() -> None:
    assert words.amount(None) == "–"  # noqa: RUF001
    assert [words.amount(value) for value in (3.0, 12345.0, 0.012345, 1.2e-7, 12345.67)] == [
        "3",
        "12,345",
        "0.01235",
        "1.2e-07",
        "12,345.7",
    ]
    assert words.colour_of("cnn-3") == 3
    assert words.colour_of("cnn-15") == 3
    assert 0 <= words.colour_of("no number") < words.NUM_COLOURS
    assert str(words.time_tag(None, NOW)) == "&ndash;"
    assert words.change(0.4) == "the same"
