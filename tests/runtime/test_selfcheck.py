"""The check that `melodeon doctor` makes can pass and can fail."""

import pytest

from melodeon.cli.doctor import OTHER_KIND, Trial, run_trials


@pytest.mark.timeout(180)
def test_levels_hold_where_they_promise_and_the_check_sees_what_they_pin() -> None:
    trials = {
        "d1": Trial(level="D1"),
        "d1 moved": Trial(level="D1", offset=3),
        "d1 other kind": Trial(level="D1", env=OTHER_KIND),
        "d2": Trial(level="D2"),
    }
    digests = {name: result["digest"] for name, result in run_trials(trials).items()}
    assert digests["d1"] == digests["d1 moved"]
    assert digests["d2"] not in (digests["d1"], digests["d1 other kind"])
