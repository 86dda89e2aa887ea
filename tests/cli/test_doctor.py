import json
import subprocess
import sys

import pytest

from melodeon.backends.machine import Machine
from melodeon.cli.doctor import Trial, _compare, promises, run_trials


def machine(flags: str = "avx2 fma", gpus: tuple[str, ...] = ()) -> Machine:
    return Machine(cpu="a CPU", architecture="x86_64", flags=frozenset(flags.split()), cores=2, gpus=gpus)


def holds(found: Machine, torch_version: str | None, gpus: tuple[str, ...] = ()) -> dict[tuple[str, str], bool]:
    return {(p.level, p.device): p.holds for p in promises(found, torch_version, gpus)}


def test_a_cpu_with_avx2_holds_every_level() -> None:
    assert all(holds(machine(), "2.13.0").values())


def test_d2_needs_avx2_and_says_so() -> None:
    assert holds(machine("sse4_2"), "2.13.0") == {("D0", "cpu"): True, ("D1", "cpu"): True, ("D2", "cpu"): False}
    assert "lacks avx2, fma" in promises(machine("sse4_2"), "2.13.0", ())[-1].why


def test_d2_is_not_promised_on_cuda() -> None:
    assert holds(machine(), "2.13.0", ("H200",))[("D2", "cuda")] is False
    assert holds(machine(), "2.13.0", ("H200",))[("D1", "cuda")] is True


def test_nothing_is_promised_without_torch() -> None:
    assert not any(holds(machine(), None).values())
    assert "pip install 'melodeon[train]'" in promises(machine(), None, ())[0].why


def test_a_difference_and_a_failure_are_told_apart() -> None:
    results: dict[str, dict[str, object]] = {"a": {"digest": "1"}, "b": {"digest": "2"}, "c": {"error": "no memory"}}
    assert _compare("x", results, "a", "a").seen == "equal"
    assert _compare("x", results, "a", "b").seen == "differ"
    assert (_compare("x", results, "a", "c").seen, _compare("x", results, "a", "c").detail) == (
        "could not run",
        "no memory",
    )


def test_a_trial_that_cannot_run_gives_its_last_words() -> None:
    result = run_trials({"x": Trial(level="D2", env={"ATEN_CPU_CAPABILITY": "default"})})["x"]
    assert "needs ATEN_CPU_CAPABILITY=avx2" in str(result["error"])


@pytest.mark.parametrize("arguments", [["--no-check"], ["--no-check", "--json"]])
def test_looking_is_quick_and_fits_the_page(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "melodeon", "doctor", *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    if "--json" in arguments:
        assert {level["level"] for level in json.loads(done.stdout)["levels"]} == {"D0", "D1", "D2"}
    else:
        assert max(map(len, done.stdout.splitlines())) <= 80
