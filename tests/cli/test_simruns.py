"""Simulations side by side, without the command line."""

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
