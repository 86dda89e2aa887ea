"""What `melodeon run` says of a run that failed: nothing twice that was seen as it came."""

from pathlib import Path
from typing import Any

import pytest

from melodeon.backends.outcome import Outcome
from tests.cli.conftest import Melodeon, called

REASON = "a loss of step 2 is NaN or infinite: find its cause"
WORDS = f"its own words\nerror: {REASON}\n"


@pytest.mark.parametrize(
    ("shown", "culprit"),
    [(0, 0), (2, 2), (0, 1)],
    ids=["the first", "one that took its place", "another that failed alike"],
)
def test_a_sentence_that_was_seen_comes_once(
    place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch, shown: int, culprit: int
) -> None:
    def run_elastic(command: object, launch: object, run_dir: Path, *args: object, **on: Any) -> Outcome:
        for worker in (shown, culprit):
            (run_dir / f"worker-{worker}.err").write_text(WORDS)
        on["on_event"]({"kind": "view", "workers": [shown, 1]})
        on["on_output"]("stderr", WORDS.encode())
        return Outcome(exit_code=2, worker=culprit, reason=REASON)

    monkeypatch.setattr("melodeon.backends.elastic.run_elastic", run_elastic)
    (place / "train.py").touch()
    code, _, err = melodeon("run", "--name", "a", "train.py")
    assert code == 2
    assert err.splitlines() == ["its own words", f"error: {REASON}", f"log: .melodeon/runs/a/worker-{culprit}.err"]


def test_a_worker_that_was_not_shown_is_quoted(
    place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_elastic(command: object, launch: object, run_dir: Path, *args: object, **on: Any) -> Outcome:
        (run_dir / "worker-1.err").write_text(WORDS)
        return Outcome(exit_code=2, worker=1, reason=REASON)

    monkeypatch.setattr("melodeon.backends.elastic.run_elastic", run_elastic)
    (place / "train.py").touch()
    _, _, err = melodeon("run", "--name", "a", "train.py")
    assert err.splitlines() == [
        "[worker 1] its own words",
        f"error: {REASON} (log: .melodeon/runs/a/worker-1.err)",
    ]


def test_what_a_terminal_would_obey_is_not_sent_with_a_mistake(place: Path) -> None:
    done = called(place, "explain", "\x1b[31mred\x07", "a")
    assert done.returncode != 0
    assert "red" in done.stderr
    assert not {"\x1b", "\x07"} & set(done.stderr)
