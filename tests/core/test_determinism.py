import itertools

import pytest

from melodeon.core.determinism import DEFAULT, LEVELS, level_env, level_threads, parse_level
from melodeon.core.errors import UsageError


def test_each_level_pins_what_the_one_below_pins() -> None:
    names = list(LEVELS)
    assert names == ["D0", "D1", "D2"]
    for lower, upper in itertools.pairwise(names):
        assert set(level_env(lower, 1)) <= set(level_env(upper, 1))
        assert set(LEVELS[lower].switches) <= set(LEVELS[upper].switches)


def test_what_must_come_before_torch_is_part_of_the_environment() -> None:
    for level in LEVELS.values():
        assert set(level.before_torch) <= set(level.env)


def test_threads_are_pinned_from_d1_on() -> None:
    assert DEFAULT == "D1"
    assert "OMP_NUM_THREADS" not in level_env("D0")
    assert level_env("D0", 3)["OMP_NUM_THREADS"] == "3"
    assert level_env("D1")["OMP_NUM_THREADS"] == level_env("D1")["MKL_NUM_THREADS"] == "1"
    assert level_threads("D0", None) is None
    assert level_threads("D2", None) == 1
    assert level_threads("D2", 4) == 4


def test_the_tables_cannot_be_changed_by_their_users() -> None:
    level_env("D2")["MKL_CBWR"] = "AVX2"
    assert level_env("D2")["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.parametrize(("text", "near"), [("D3", "D2"), ("D22", "D2"), ("", "D"), ("full", "D")])
def test_an_unknown_level_is_answered_with_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"is not one of D0, D1, D2: did you mean {near}"):
        parse_level(text)


def test_case_does_not_matter() -> None:
    assert parse_level("d2").name == "D2"


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2", 1025, 100_000])
def test_threads_is_a_positive_whole_number_that_a_process_can_have(threads: object) -> None:
    with pytest.raises(UsageError, match="whole number from 1 to 1,024"):
        level_env("D1", threads)  # type: ignore[arg-type]
