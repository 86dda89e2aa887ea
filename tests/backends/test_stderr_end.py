import os
from pathlib import Path

import pytest

from melodeon.backends.outcome import STOPPED, Outcome
from melodeon.backends.stderr_end import LONGEST, explained, said_last

BARE = "worker 2 ended with exit code 1"


def failed(reason: str = BARE) -> Outcome:
    return Outcome(exit_code=1, worker=2, reason=reason)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"Traceback\n" * 1000 + b"ValueError: no\n\n", "ValueError: no"),
        (b"half a line", "half a line"),
        (b"ok\n\x1b[2J\x1b]0;owned\x07\x1b[31mred\x07\x1b[0m\n\x1b[0m\n", "red\N{REPLACEMENT CHARACTER}"),
        (b"10%\r20%\r30%", "30%"),
        (b"x" * 5000, "x" * LONGEST),
        (b"caf\xe9\n", "caf\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_last_line_is_told_harmless_and_bounded(tmp_path: Path, written: bytes, told: str) -> None:
    (tmp_path / "worker-2.err").write_bytes(written)
    assert said_last(tmp_path, 2) == told
    assert explained(failed(), tmp_path) == failed(f"{BARE}: {told}")


def test_an_end_that_is_explained_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "worker-2.err").write_text("some warning\n")
    for outcome in (Outcome(exit_code=0), STOPPED, failed("worker 2 failed: ValueError: no"), failed(f"{BARE}; why")):
        assert explained(outcome, tmp_path) == outcome


def test_a_worker_that_said_nothing(tmp_path: Path) -> None:
    assert explained(failed(), tmp_path) == failed()
    (tmp_path / "worker-2.err").write_text("\n \n")
    assert explained(failed(), tmp_path) == failed()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-2.err"
    os.mkfifo(path)
    assert said_last(tmp_path, 2) == ""
    path.unlink()
    (tmp_path / "secret").write_text("secret\n")
    path.symlink_to(tmp_path / "secret")
    assert said_last(tmp_path, 2) == ""
