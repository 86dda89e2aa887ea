"""What is folded from a job's events, whatever they are."""

import json

from hypothesis import given
from hypothesis import strategies as st

from melodeon.backends.devices import SlotMap
from melodeon.backends.fleet_progress import Progress
from melodeon.backends.fleet_values import Ended, Seen

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = ("worker_started", "worker_gone", "begin", "step", "view", "restart", "end", "joined", "other")
FIELDS = ("worker", "slot", "step", "total_steps", "steps_per_epoch", "pauses", "metrics", "outcome", "virtual_workers")


def fold(*events: object, status: dict[str, object] | None = None, ended: Ended | None = None) -> Seen:
    progress = Progress(SlotMap({"a": 2, "b": 2}, {}), cuda=False)
    for event in events:
        progress.lines(json.dumps(event).encode() + b"\n")
    if status is not None:
        progress.status(status)
    return progress.seen("j", 1, ended=ended)


def test_a_jobs_life() -> None:
    begun = [
        {"kind": "worker_started", "worker": 0, "agent": "node0", "slot": 0},
        {"kind": "worker_started", "worker": 1, "agent": "node0", "slot": 3},
    ]
    assert fold(*begun).slots == {"a": (0,), "b": (1,)}
    assert not fold(*begun).training
    begun += [
        {"kind": "joined", "worker": 0, "virtual_workers": 6},
        {"kind": "begin", "step": 4, "total_steps": 75, "steps_per_epoch": 25},
        {"kind": "view", "generation": 1, "step": 4, "workers": [0, 1], "pauses": {}},
        {"kind": "step", "step": 10, "epoch": 0, "metrics": {"step": 10, "epoch": 0, "loss": 0.5, "x": float("nan")}},
    ]
    seen = fold(*begun)
    assert (seen.training, seen.step, seen.total_steps, seen.steps_per_epoch) == (True, 10, 75, 25)
    assert (seen.virtual_workers, seen.views, seen.metrics) == (6, 1, {"loss": 0.5, "x": None})
    moved = [
        {"kind": "worker_started", "worker": 2, "agent": "node0", "slot": 1},
        {"kind": "view", "generation": 2, "step": 12, "workers": [0, 2], "pauses": {"0": 0.25, "2": 0.5}},
        {"kind": "worker_gone", "worker": 1, "how": "ended"},
    ]
    seen = fold(*begun, *moved)
    assert (seen.slots, seen.views, seen.pause_s) == ({"a": (0, 1)}, 2, 0.5)
    assert not fold(*begun, {"kind": "restart", "why": "all were lost"}).training
    assert not fold(*begun, {"kind": "end", "outcome": "done"}).training
    over = fold(*begun, ended=Ended(status="done"))
    assert (over.alive, over.training, over.slots, over.step) == (False, False, {}, 10)


def test_a_mean_that_diverged_takes_the_place_of_the_last_good_one() -> None:
    good = {"kind": "step", "step": 1, "metrics": {"loss": 0.5, "size": 2}}
    assert fold(good, {"kind": "step", "step": 2, "metrics": {"loss": float("inf"), "size": 10**400}}).metrics == {
        "loss": None,
        "size": None,
    }
    assert fold(good, status={"step": 2, "metrics": {"loss": None}, "workers": []}).metrics == {"loss": None, "size": 2}


def test_warnings_are_passed_on_once_and_other_notes_are_not() -> None:
    warning = {"kind": "note", "text": "mind \x1b[2Jthis", "warning": True}
    many = [{"kind": "note", "text": f"{number}" * 1000, "warning": True} for number in range(20)]
    assert fold(warning, warning, {"kind": "note", "text": "resumed"}).warnings == (
        "mind \N{REPLACEMENT CHARACTER}[2Jthis",
    )
    found = fold(*many).warnings
    assert (len(found), {len(text) for text in found}) == (10, {500})


def test_a_masters_answer_adds_what_events_do_not_say() -> None:
    status = {"step": 30, "rates": {"1": 3.5, "2": float("nan")}, "metrics": {"loss": 0.25}, "workers": []}
    seen = fold({"kind": "step", "step": 20, "metrics": {"acc": 1}}, status=status)
    assert (seen.step, seen.rates, seen.metrics) == (30, {1: 3.5}, {"acc": 1.0, "loss": 0.25})
    assert fold(status={"rates": "no", "workers": []}).rates == {}


def test_a_worker_that_is_not_listed_twice_is_gone() -> None:
    progress = Progress(SlotMap({"a": 2}, {}), cuda=False)
    for worker in (0, 1):
        progress.lines(json.dumps({"kind": "worker_started", "worker": worker, "slot": worker}).encode())
    progress.status({"workers": [{"worker": 0}]})
    assert progress.seen("j", 1, ended=None).slots == {"a": (0, 1)}
    progress.status({"workers": [{"worker": 0}, {"worker": 1}]})
    progress.status({"workers": [{"worker": 0}]})
    progress.status({"workers": [{"worker": 0}]})
    assert progress.seen("j", 1, ended=None).slots == {"a": (0,)}


def test_many_lines_at_once() -> None:
    progress = Progress(SlotMap({"a": 1}, {}), cuda=False)
    rows = [{"kind": "step", "step": step, "metrics": {"loss": step}} for step in range(1000)]
    progress.lines("".join(json.dumps(row) + "\n" for row in rows).encode() + b'{"kind": "ste')
    seen = progress.seen("j", 1, ended=None)
    assert (seen.step, seen.metrics) == (999, {"loss": 999.0})


def test_a_job_is_over_when_its_master_says_so() -> None:
    progress = Progress(SlotMap({"a": 1}, {}), cuda=False)
    progress.lines(b'{"kind": "end", "step": 3, "digest": "00"}')
    assert not progress.is_over
    progress.lines(b'{"kind": "end", "outcome": "done"}')
    assert progress.is_over


@given(kind=st.sampled_from(KINDS), values=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5))
def test_no_event_stops_the_reader(kind: str, values: dict[str, object]) -> None:
    started = {"kind": "worker_started", "worker": 7, "agent": "node0", "slot": 3}
    told = fold({"kind": kind, **values}, values, [values], started)
    assert 1 in told.slots.get("b", ()), "what comes after is read"
    for status in (values, {"workers": [values], **values}):
        assert fold(status=status).ended is None, "a status alone ends nothing"


@given(st.binary(max_size=60))
def test_no_bytes_stop_the_reader(data: bytes) -> None:
    progress = Progress(SlotMap({"a": 1}, {}), cuda=False)
    progress.lines(data)
    progress.lines(b"[" * 100_000)
    progress.lines(b'{"kind": "end", "outcome": "done"}')
    assert progress.is_over, "what comes after is read"
