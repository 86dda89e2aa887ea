import contextlib
import os

import pytest

from melodeon.cli import progress
from melodeon.cli.progress import Bar, Lines, Quiet, describe, format_metrics
from tests.cli.conftest import terminal


def test_events_in_words() -> None:
    assert describe({"kind": "checkpoint", "step": 5, "path": "c/x"}, None) == "checkpoint of step 5: c/x"
    assert describe({"kind": "step", "step": 5, "metrics": {"loss": 0.5}}, 20) == "step 5/20 loss 0.5"
    assert describe({"kind": "joined", "worker": 1}, None) is None
    joined = {"kind": "joined", "worker": 0, "virtual_workers": 1, "assignment": "1"}
    assert str(describe(joined, None)).startswith("1 virtual worker as 1 on ")
    assert describe({"kind": "something new"}, None) is None


def test_metrics_in_words() -> None:
    assert format_metrics({"step": 40, "epoch": 2, "loss": 0.123456, "n": 3}) == "loss 0.1235, n 3"
    assert format_metrics(None) == ""


def test_steps_are_thinned_out_by_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([100.0, 100.0, 101.0, 100.0 + progress.PLAIN_EVERY_S, 200.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    lines = Lines(stdout_to_stderr=False)
    for step in (1, 2, 3):
        lines.event({"kind": "step", "step": step, "metrics": {}})
    assert capsys.readouterr().err == "melodeon: step 1\nmelodeon: step 3\n"


def test_a_reader_of_stdout_that_leaves_keeps_stderr(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with contextlib.suppress(BrokenPipeError), os.fdopen(write, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        quiet = Quiet(stdout_to_stderr=False)
        quiet.output("stdout", b"unheard\n")
        quiet.output("stdout", b"unheard\n")
        quiet.output("stderr", b"what went wrong\n")
    assert capfdbinary.readouterr().err == b"what went wrong\n"


def test_the_bar_shows_steps_and_keeps_output_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    bar = Bar(stdout_to_stderr=True)
    bar.event({"kind": "begin", "step": 0, "total_steps": 10})
    bar.event({"kind": "step", "step": 7, "metrics": {"loss": 0.5}})
    bar.output("stdout", b"the script [says] this\n")
    bar.close()
    assert "the script [says] this" in screen.getvalue()
    assert "7/10" in screen.getvalue()
    assert "loss 0.5" in screen.getvalue()


def test_a_job_that_starts_again_says_so() -> None:
    lost = {"kind": "restart", "why": "worker 0 was ended by SIGKILL"}
    text = "all workers were lost, the job starts again: worker 0 was ended by SIGKILL"
    assert describe(lost, 10) == text
