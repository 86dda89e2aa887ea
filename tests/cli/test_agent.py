"""`melodeon agent`: mistakes on its command line; what it does is in tests/backends/test_guest.py."""

from pathlib import Path

import pytest

from tests.cli.conftest import Melodeon


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "RUN"),
        (["nowhere"], 4, "nowhere is no run with agents: give the folder of a run"),
        (["nowhere", "--name", "../node0"], 2, "--name '../node0' is no name of a node: give letters, digits"),
        (["nowhere", "--slots", "0"], 2, "--slots"),
    ],
)
def test_mistakes_have_a_sentence(place: Path, melodeon: Melodeon, args: list[str], code: int, sentence: str) -> None:
    found, out, err = melodeon("agent", *args)
    assert (found, out) == (code, "")
    assert sentence in err
