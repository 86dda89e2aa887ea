"""What being elastic costs is judged by means over starts, and only a measurement that can tell passes."""

import os
import subprocess
import sys

import idle_overhead
import pytest


def start(elastic_s: float, elastic_cpu_s: float) -> dict[str, tuple[float, float]]:
    return {"elastic": (elastic_s, elastic_cpu_s), "static": (0.2, 0.006), "static again": (0.2, 0.004)}


def test_the_cost_is_a_share_of_throughput_and_of_what_the_workers_have() -> None:
    found = idle_overhead.judge([start(0.2, 0.0054), start(0.2, 0.0058)], step_s=0.2)
    assert found["throughput"] == 1.0
    assert found["cpu_share"] == pytest.approx((0.0056 - 0.005) / 0.4)
    assert found["cpu_share_error"] == pytest.approx(0.0002 / 0.4)
    assert all(bound["met"] for bound in idle_overhead.held(found))


@pytest.mark.parametrize(
    "starts",
    [
        [start(0.202, 0.005), start(0.202, 0.005)],  # slower by 1 %
        [start(0.2, 0.007), start(0.2, 0.007)],  # 0.5 % more CPU time
        [start(0.199, 0.005), start(0.201, 0.005)],  # an error of 0.5 %
    ],
)
def test_what_costs_too_much_or_cannot_be_told_is_not_met(starts: list[dict[str, tuple[float, float]]]) -> None:
    assert not all(bound["met"] for bound in idle_overhead.held(idle_overhead.judge(starts, step_s=0.2)))


def test_cpu_time_is_that_of_other_processes() -> None:
    work = "import sys\nwhile __import__('time').process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        used = idle_overhead.cpu_s([busy.pid])
        assert 0.3 <= used < 0.6
        assert idle_overhead.cpu_s([busy.pid, os.getpid()]) > used
        busy.kill()
    with pytest.raises(SystemExit, match="has ended"):
        idle_overhead.cpu_s([busy.pid])
