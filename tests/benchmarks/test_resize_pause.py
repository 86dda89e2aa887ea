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


def test_a_move_is_held_to_the_speed_of_one_copy_and_growth_to_that_of_two_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resize_pause, "copy_gb_per_s", lambda num_bytes, readers, device: 10.0 / readers)
    rates = resize_pause.copy_rates(MLP.state_bytes, "cpu")
    assert (rates["migrate 2->2"], rates["2->4"]) == (10.0, 5.0)


def test_a_longer_pause_and_a_change_that_failed_keep_no_bound() -> None:
    assert missed(row("4->2", sample(0.030))) == ["seconds beyond the step"]
    assert missed(row("4->2", sample(0.020), {"failed": "2 changes were seen"})) == ["changes that failed"]
    assert missed(row("4->2", {"failed": "none was seen"})) == ["changes that failed"]


def test_torchrun_must_take_twenty_times_as_long_with_the_step_in_both() -> None:
    mine = row("4->2", sample(0.020))
    for pause_s, what in ((0.41, []), (0.39, ["times shorter than torchrun's"])):
        resize_pause.compare(mine, "torchrun", [{"pause_s": pause_s, "step_after_s": 0.012}])
        assert missed(mine) == what


def test_a_peer_that_fails_is_a_result_and_the_end_of_the_benchmark_is_not() -> None:
    found: resize_pause.Found = {"2->4": []}
    with resize_pause.failing(found, "2->4"):
        raise SystemExit("the peer has ended\nand said why")
    assert found == {"2->4": [{"failed": "the peer has ended"}]}
    with pytest.raises(SystemExit), resize_pause.failing(found, "2->4"):
        raise SystemExit(143)
