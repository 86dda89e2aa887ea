import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from melodeon.viz.screen import rate, rates, screen
from melodeon.viz.words import duration, milliseconds, number, plain, sentence


def shown(status: dict[str, Any], width: int = 80, **more: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(screen(status, width=width, **more))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def worker(index: int, ranks: str = "", **more: Any) -> dict[str, Any]:
    return {
        "worker": index,
        "agent": "a0",
        "pid": 100,
        "phase": "member",
        "ranks": ranks,
        "step": 7,
        "busy_ms": 5.0,
    } | more


def test_the_bar_shows_shares_in_the_order_of_ranks() -> None:
    lines = shown({"job": "j", "workers": [worker(4, "6-7"), worker(0, "0-5")]})
    bar = next(line for line in lines if line.startswith("│"))
    assert len(bar) == 80
    assert bar.startswith("│0░")
    assert 58 <= bar.index("│4") <= 60, "three quarters of the width"


def test_a_job_that_has_nothing_yet_is_shown_too() -> None:
    lines = shown({"job": "j", "phase": "starting", "step": -1, "workers": [worker(0, step=-1, busy_ms=0.0)]})
    assert lines[0].split() == ["j", "starting", "view", "-", "step", "-"]
    assert not any("│" in line for line in lines)
    assert shown({})


def test_a_worker_that_is_let_go_leaves() -> None:
    lines = shown({"job": "j", "workers": [worker(0, "0-3"), worker(1, released=True)]})
    assert [line.split()[3] for line in lines if " a0 " in line] == ["member", "leaving"]


def test_the_pace_and_every_view_with_its_pause_and_reason_are_shown() -> None:
    history = [
        {"generation": 1, "step": 0, "reason": "the job starts", "pauses": {}},
        {"generation": 2, "step": 40, "reason": "worker 1 is gone", "pauses": {"0": 0.02, "2": 0.183}},
    ]
    lines = shown({"job": "j", "workers": [worker(0, "0-3")], "history": history}, samples=[(0.0, 0), (5.0, 61)])
    assert lines[1].startswith("12.2 steps/s ")
    heading = next(number for number, line in enumerate(lines) if line.startswith("view "))
    assert [line.split() for line in lines[heading + 2 : heading + 4]] == [
        ["2", "40", "183", "ms", "worker", "1", "is", "gone"],
        ["1", "0", "-", "the", "job", "starts"],
    ]


def test_workers_that_do_not_fit_are_counted() -> None:
    lines = shown({"job": "j", "workers": [worker(index, str(index)) for index in range(50)]}, height=24)
    assert len(lines) <= 24
    hidden = next(line for line in lines if "more workers" in line).split()[2]
    workers = [worker(index, str(index)) for index in range(51 - int(hidden))]
    assert any(line.rstrip() == "... and 1 more worker" for line in shown({"job": "j", "workers": workers}, height=24))


def test_a_jobs_own_words_cannot_move_the_cursor() -> None:
    history = [{"generation": 1, "step": 1, "reason": "\x1b[2J[red]gone[/red]\n", "pauses": {}}]
    events = [{"kind": "note", "text": "\x1b]0;title\x07[bold]x"}]
    text = "\n".join(shown({"job": "\x1bj", "history": history}, events=events))
    assert "\x1b" not in text
    assert "[red]gone[/red]" in text
    assert "[bold]x" in text


@given(
    workers=st.lists(
        st.builds(
            worker, st.integers(0, 10**6), st.sampled_from(["", "0", "0-3", "4-1000", "x"]), pid=st.integers(0, 10**7),
            agent=st.text(max_size=200), busy_ms=st.floats(0, 1e7), step=st.integers(-1, 10**9),
        ), max_size=12),
    history=st.lists(st.fixed_dictionaries({
        "generation": st.integers(0, 10**6), "step": st.integers(0, 10**9), "reason": st.text(max_size=300),
        "pauses": st.dictionaries(st.text(max_size=3), st.floats(0, 1e4)),
    }), max_size=4),
    samples=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**6))).map(sorted),
    width=st.integers(80, 120),
)  # fmt: skip
def test_every_screen_fits_its_width(workers: Any, history: Any, samples: Any, width: int) -> None:
    status = {"job": "20261115-132710-1fc0", "generation": 1, "step": 5, "workers": workers, "history": history}
    console = Console(file=io.StringIO(), width=width)
    rendered = console.render_lines(screen(status, samples=samples, width=width), pad=False)
    assert all(sum(segment.cell_length for segment in line) <= width for line in rendered)


def test_pace() -> None:
    assert rate([]) is None
    assert rate([(0.0, 0), (5.0, 50)]) == pytest.approx(10)
    assert rate([(0.0, 0), (100.0, 1000), (101.0, 1020)]) == pytest.approx(20), "of the newest seconds"
    assert rates([(0.0, 0), (1.0, 10), (2.0, 40)], 2) == pytest.approx([10, 30])
    assert rates([(1.0, 1)], 4) == []


def test_words() -> None:
    assert (number(1234), number(-1), number(None)) == ("1,234", "-", "-")
    assert [milliseconds(s) for s in (0.0012, 0.035, 1.23, None)] == ["1.2 ms", "35 ms", "1.2 s", "-"]
    assert [duration(s) for s in (5, 90, 7200, 200_000)] == ["5 s", "2 min", "2.0 h", "2.3 d"]
    assert plain("a\tb\x1b") == "a b\ufffd"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "worker_gone", "worker": 2, "how": "killed by SIGKILL"}, "worker 2 is gone: killed by SIGKILL"),
        ({"kind": "worker_gone", "worker": 2, "how": "ended"}, "worker 2 has left"),
        ({"kind": "ask", "what": "scale", "id": "7", "values": {"n": 4}}, "asked: scale (n 4)"),
        ({"kind": "end", "outcome": "done", "text": "done after 9 steps"}, "done: done after 9 steps"),
        ({"kind": "end", "step": 9, "digest": "d"}, None),
        ({"kind": "step", "step": 3}, None),
        ({"kind": "profile", "workers": 1, "steps_per_s": 103.8}, "measured 104 steps/s on 1 worker"),
        (
            {"kind": "view", "generation": 3, "step": 9, "pauses": {"0": 0.1}, "reason": "r"},
            "view 3 from step 9, longest pause 100 ms: r",
        ),
    ],
)
def test_events_in_words(event: dict[str, object], text: str | None) -> None:
    assert sentence(event) == text
