"""Simulations side by side, without the command line."""

import ctypes
import os

import pytest
from scipy.optimize import milp  # type: ignore[import-untyped]

from melodeon.cli.simruns import Done, Task, simulate
from melodeon.core.curve import ScalingCurve
from tests.sched.draws import job


def run(failures: tuple[float, float], slot_s: float = 0.0) -> Done:
    task = Task(policy="fifo", cluster="1x1", seed=0, slot_s=slot_s, failures=failures)
    return simulate(task, [job("a", 5e6, ScalingCurve.linear(1.0, 1))], lambda *_: None)


def test_nodes_fail_for_as_long_as_the_work_lasts() -> None:
    # 58 days of work on a node that fails every day: past the month after the last submission, too.
    stops = run((86_400.0, 3600.0)).values["num_suspensions"]
    assert stops is not None
    assert stops > 45


def test_failures_that_leave_nobody_time_to_train_are_refused() -> None:
    for slot_s, least in ((0.0, 60), (300.0, 300)):
        done = run((least - 1.0, 86_400.0), slot_s)
        assert done.exit_code == 2
        assert f"are shorter than {least} s" in (done.problem or "")


def test_what_a_solver_writes_by_itself_does_not_reach_the_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def talkative(*args: object, **options: object) -> object:
        os.write(1, b"HighsMipSolverData::run\n")
        ctypes.CDLL(None).printf(b"held back\n")
        return milp(*args, **options)

    monkeypatch.setattr("scipy.optimize.milp", talkative)
    jobs = [job(name, 500.0, ScalingCurve.linear(1.0, 1), deadline_s=5000.0) for name in "ab"]
    assert simulate(Task(policy="chronus", cluster="1x1", seed=0, slot_s=0.0), jobs, lambda *_: None).problem is None
    print("the answer")
    ctypes.CDLL(None).fflush(None)
    out, err = capfd.readouterr()
    assert out == "the answer\n"
    assert err.startswith("HighsMipSolverData::run\n")
    assert "held back\n" in err
