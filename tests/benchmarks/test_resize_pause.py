"""A pause is held to a step and two raw copies, beyond the step that is in it; a change that failed keeps no bound."""

from typing import Any

import pytest
import resize_pause
from cases import CASES

MLP = CASES["mlp"]


def sample(pause_s: float) -> dict[str, Any]:
    return {"pause_s": pause_s, "step_before_s": 0.007, "step_after_s": 0.012}


def row(change: str, *samples: dict[str, Any], gb_per_s: float = 10.0) -> dict[str, Any]:
    return resize_pause.judge(MLP, change, list(samples), gb_per_s)


def missed(row: dict[str, Any]) -> list[str]:
    return [str(bound["what"]).partition(": ")[2] for bound in resize_pause.bounds_of(row) if not bound["met"]]


def test_growth_may_take_a_step_and_two_copies_more_than_its_step_and_shrinking_a_step() -> None:
    copies_s = 2 * MLP.state_bytes / 10e9
    grown, shrunk = row("2->4", sample(0.020)), row("4->2", sample(0.020))
    assert grown["allowed_beyond_s"] == pytest.approx(0.012 + copies_s, abs=1e-4)
    assert shrunk["allowed_beyond_s"] == pytest.approx(0.012)
    assert missed(grown) == missed(shrunk) == []


def test_a_longer_pause_and_a_change_that_failed_keep_no_bound() -> None:
    assert missed(row("4->2", sample(0.030))) == ["seconds beyond the step"]
    assert missed(row("4->2", sample(0.020), {"failed": "2 changes were seen"})) == ["changes that failed"]
    assert missed(row("4->2", {"failed": "none was seen"})) == ["changes that failed"]


def test_torchrun_must_take_twenty_times_as_long() -> None:
    mine = row("4->2", sample(0.020))
    for pause_s, what in ((0.3, []), (0.1, ["of torchrun, beyond the step"])):
        resize_pause.compare(mine, "torchrun", [{"pause_s": pause_s, "step_after_s": 0.012}])
        assert missed(mine) == what
