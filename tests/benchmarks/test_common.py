"""A figure that does not keep its bound is named, and fails the benchmark that was asked to check it."""

import json

import pytest
from _common import Bound, arguments, at_least, at_most, report


@pytest.mark.parametrize(
    ("bound", "met"),
    [
        (at_least("speed", 0.9, 0.9), True),
        (at_least("speed", 0.89, 0.9), False),
        (at_most("pause", 0.3, 0.3), True),
        (at_most("pause", 0.31, 0.3), False),
        (at_least("speed", float("nan"), 0.9), False),
        (at_most("pause", float("nan"), 0.3), False),
    ],
)
def test_a_bound_says_whether_it_is_met(bound: Bound, met: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report(benchmark="one", bounds=[at_least("always", 1.0, 0.0), bound])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["met"] is met
    assert ("not met" in printed.err) is not met
    if met:
        report(benchmark="one", bounds=[bound], check=True)
        return
    with pytest.raises(SystemExit) as ended:
        report(benchmark="one", bounds=[bound], check=True)
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["benchmark"] == "one", "the line is printed first"


def test_a_benchmark_without_bounds_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    report(benchmark="one", check=True)
    assert not {"bounds", "met"} & set(json.loads(capsys.readouterr().out))


def test_checking_is_asked_for() -> None:
    assert not arguments("A benchmark.").parse_args([]).check
    assert arguments("A benchmark.").parse_args(["--check"]).check
