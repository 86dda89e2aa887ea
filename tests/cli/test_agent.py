"""`melodeon agent`: mistakes on its command line; what it does is in tests/backends/test_guest.py."""

import os
from pathlib import Path

import pytest

from melodeon.cli.agent import _Told
from tests.cli.conftest import Melodeon


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "RUN"),
        (["nowhere"], 4, "nowhere is no run with agents: give the folder of a run"),
        (["nowhere", "--name", "../node0"], 2, "--name '../node0' is no name of a node: give letters, digits"),
        (["nowhere", "--address", ""], 2, "--address '' names no machine: give the address"),
        (["nowhere", "--slots", "0"], 2, "--slots"),
        (["nowhere", "--slots", "9" * 20], 2, f"--slots {'9' * 20} cannot be: it must be less"),
    ],
)
def test_mistakes_have_a_sentence(place: Path, melodeon: Melodeon, args: list[str], code: int, sentence: str) -> None:
    found, out, err = melodeon("agent", *args)
    assert (found, out) == (code, "")
    assert sentence in err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_machine_stays_in_a_job_also_where_nobody_reads_what_it_says(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        told = _Told(as_json=as_json)
        for worker in range(2):
            told.event({"kind": "worker_started", "worker": worker, "agent": "", "slot": 0})
        told.ended(False)


def test_what_happens_is_told_when_it_happens_also_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as ours, os.fdopen(read, "rb") as theirs:
        monkeypatch.setattr("sys.stdout", ours)
        os.set_blocking(theirs.fileno(), False)
        _Told(as_json=False).event({"kind": "worker_started", "worker": 3, "agent": "", "slot": 0})
        assert theirs.read() == b"worker  3 starts in slot 0\n"
