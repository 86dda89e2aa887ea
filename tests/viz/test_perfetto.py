"""A trace must load: the format's rules are checked here on a run with every kind of event, and on drawn ones."""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from melodeon.viz.perfetto import CHANGES, FIRST_WORKER, VIEWS, trace

START = datetime(2026, 11, 15, 13, tzinfo=UTC)


def at(seconds: float, kind: str, **fields: object) -> dict[str, object]:
    return {"at": (START + timedelta(seconds=seconds)).isoformat(), "kind": kind, **fields}


RUN = [
    at(0.0, "master", agent="a0", fence=1),
    at(0.1, "worker_started", worker=0, agent="a0", slot=0),
    at(0.1, "worker_started", worker=1, agent="a0", slot=1),
    at(1.0, "worker_ready", worker=0),
    at(1.2, "worker_ready", worker=1),
    at(1.5, "view", generation=1, step=0, workers=[0, 1], assignment="4,4", reason="the job begins", pauses={}),
    at(1.5, "begin", step=0, total_steps=100),
    at(2.5, "step", step=10),
    at(3.0, "ask", id="x", what="scale", values={"n": 3}),
    at(3.1, "worker_started", worker=2, agent="a1", slot=0),
    at(3.5, "step", step=20),
    at(3.6, "worker_ready", worker=2),
    at(4.0, "view", generation=2, step=24, workers=[0, 1, 2], assignment="3,3,2", reason="scale to 3 was asked for",
       pauses={"0": 0.05, "1": 0.04}),
    at(4.5, "step", step=30),
    at(5.0, "worker_gone", worker=1, how="killed by SIGKILL", exit_code=-9),
    at(5.2, "view", generation=3, step=34, workers=[0, 2], assignment="4,4", reason="worker 1 is gone",
       pauses={"0": 0.2, "2": 0.2}),
    at(6.0, "step", step=40),
    at(6.1, "checkpoint", step=40, path="c"),
    at(6.2, "straggler", worker=2, why="90 ms a step", busy_ms=90.0),
    at(6.5, "end", step=45, digest="d"),
    at(6.6, "worker_gone", worker=0, how="ended", exit_code=0),
    at(6.7, "something new", worker="nobody", step=None),
]  # fmt: skip


def check(made: dict[str, Any]) -> list[dict[str, Any]]:
    """What the viewer needs of a file of trace events."""
    found = json.loads(json.dumps(made, allow_nan=False))["traceEvents"]
    named = {event["tid"] for event in found if event["name"] == "thread_name"}
    ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in found:
        assert event["ph"] in "MXiC"
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            ends[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] in "Xi":
            assert event["tid"] in named, "every track has a name"
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "C":
            assert isinstance(event["args"]["value"], int | float)
    for spans in ends.values():
        ordered = sorted(spans)
        for (_, end), (begin, _) in pairwise(ordered):
            assert begin >= end, "slices of one track do not overlap"
    return found


def slices(found: list[dict[str, Any]], track: int) -> list[tuple[str, float, float]]:
    return [
        (event["name"], event["ts"] / 1e6, round((event["ts"] + event["dur"]) / 1e6, 6))
        for event in found
        if event["ph"] == "X" and event["tid"] == track
    ]


def test_the_life_of_workers() -> None:
    found = check(trace(RUN, name="a"))
    assert slices(found, FIRST_WORKER + 2) == [
        ("starting", 3.1, 3.6),
        ("ready, waiting for a seat", 3.6, 4.0),
        ("pause", 5.0, 5.2),
        ("steps 25-30", 4.0, 4.5),
        ("steps 31-34", 4.5, 5.0),
        ("steps 35-40", 5.2, 6.0),
        ("steps 41-45", 6.0, 6.5),
    ]
    last = slices(found, FIRST_WORKER + 1)[-1]
    assert last == ("steps 31-34", 4.5, 5.0), "it was gone by then"


def test_views_and_their_changes_with_reasons() -> None:
    found = check(trace(RUN, name="a"))
    assert [name for name, _, _ in slices(found, VIEWS)] == ["view 1: 4,4", "view 2: 3,3,2", "view 3: 4,4"]
    assert slices(found, CHANGES)[1:] == [
        ("to view 2: scale to 3 was asked for", 3.95, 4.0),
        ("to view 3: worker 1 is gone", 5.0, 5.2),
    ]
    view = next(event for event in found if event["name"] == "view 2: 3,3,2")
    assert view["args"]["reason"] == "scale to 3 was asked for"


def test_faults_are_instants_of_their_worker() -> None:
    found = check(trace(RUN, name="a"))
    faults = [(event["tid"] - FIRST_WORKER, event["name"]) for event in found if event.get("cat") == "fault"]
    assert faults == [(1, "lost: killed by SIGKILL"), (2, "straggler: 90 ms a step")]


def test_a_wish_for_what_is_no_number_is_drawn_in_words() -> None:
    values = {"n": float("nan"), "workers": [float("inf"), 1]}
    found = check(trace([*RUN, at(7.0, "ask", id="y", what="scale", values=values)], name="a"))
    asked = [event["args"]["values"] for event in found if event["name"] == "asked: scale"]
    assert asked == [{"n": 3}, {"n": "nan", "workers": ["inf", 1]}]


def test_metrics_stand_where_their_step_was() -> None:
    rows = [{"step": 5, "epoch": 0, "loss": 0.5}, {"step": 6, "loss": float("nan")}, {"step": 900, "loss": 1.0}]
    found = check(trace(RUN, rows, name="a"))
    assert [(e["ts"] / 1e6, e["args"]["value"]) for e in found if e["name"] == "loss"] == [(2.0, 0.5)]
    assert [e["args"]["value"] for e in found if e["name"] == "workers"] == [2, 3, 2]


def test_a_run_of_a_fixed_size_has_its_steps_too() -> None:
    events = [at(0, "joined", worker=0), at(0, "joined", worker=1), at(1, "step", step=3), at(2, "step", step=4)]
    found = check(trace(events, name="a"))
    assert slices(found, FIRST_WORKER + 1) == [("step 4", 1.0, 2.0)]


def test_nothing_to_draw() -> None:
    assert trace([{"kind": "step", "step": 1}], name="a")["traceEvents"] == []


drawn = st.builds(
    lambda seconds, kind, worker, step, workers, pauses: at(
        seconds, kind, worker=worker, step=step, generation=step, workers=workers, pauses=pauses, reason="r", how="x"
    ),
    st.floats(0, 100),
    st.sampled_from(["view", "step", "worker_started", "worker_ready", "worker_gone", "joined", "begin", "ask"]),
    st.one_of(st.none(), st.integers(0, 4)),
    st.one_of(st.none(), st.integers(0, 50)),
    st.lists(st.integers(0, 4), unique=True, max_size=4),
    st.dictionaries(st.integers(0, 4).map(str), st.floats(0, 20), max_size=3),
)


@given(st.lists(drawn, max_size=25))
def test_whatever_a_run_says_its_trace_loads(events: list[dict[str, object]]) -> None:
    check(trace(events, name="a"))
