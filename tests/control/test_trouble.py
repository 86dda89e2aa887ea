"""What could not be done is said once, and to nobody where nobody listens."""

import io
import sys

import pytest

from melodeon.control.trouble import said


def test_the_same_trouble_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("no room", "") == "no room"
    assert said("no room", "no room") == "no room"
    assert said("no room at all", "no room") == "no room at all"
    assert capsys.readouterr().err == "melodeon: no room\nmelodeon: no room at all\n"


def test_a_terminal_that_was_closed_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.TextIOBase):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    assert said("no room", "") == "no room"
