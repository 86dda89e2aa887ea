"""The commands against a real elastic job: two agents, real workers, one of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from melodeon.cli.follow import ticks
from melodeon.coord import registry
from melodeon.coord.client import connect
from tests.cli.conftest import Melodeon

JOB = Path(__file__).with_name("live_job.py")


@pytest.fixture
def launcher(place: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, JOB, "alive"]) as process:
        try:
            for _ in ticks(lambda: bool(registry.entries()), process.pid, interval_s=0.05):
                assert process.poll() is None, "the job ended before it was registered"
            yield process
        finally:
            if process.poll() is None:  # nothing of the job outlives its launcher
                process.kill()


def until(what: Callable[[dict[str, Any]], bool], within_s: float = 60.0) -> dict[str, Any]:
    """The first status that is as hoped, looked at as the job tells its events."""
    ends = time.monotonic() + within_s
    for status in connect("alive").watch(0.2):
        if what(status):
            return status
        assert time.monotonic() < ends, status
    raise AssertionError("the job ended without such a status")


def has(size: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: sum(1 for w in status["workers"] if w["ranks"] and w["phase"] == "member") == size


def test_a_job_is_watched_resized_and_stopped(launcher: "subprocess.Popen[bytes]", melodeon: Melodeon) -> None:
    until(has(2))
    code, out, _ = melodeon("scale", "3")
    assert (code, out.splitlines()[0]) == (0, "done    scale to 3 was asked for: the job has 3 workers.")
    assert [line.split()[0] for line in out.splitlines()] == ["done", "view", "pause", "next"]
    assert json.loads(melodeon("ps", "-o", "json")[1])["jobs"][0]["workers"] == 3
    assert melodeon("scale", "9")[0] == 2
    assert melodeon("migrate", "--to", "nowhere")[0] == 2

    victim = until(has(3))["workers"][-1]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda status: status["restarts_left"] == 0 and has(3)(status))
    assert f"worker {victim['worker']} is gone" in melodeon("top", "--once")[1]
    assert "[worker 0] worker 0 is here\n" in melodeon("logs", "alive")[1]

    code, out, _ = melodeon("stop")
    assert (code, out.startswith("done    job alive has ended: stopped after")) == (0, True)
    assert launcher.wait(20) == 7
    assert melodeon("trace", "alive", "-o", "trace.json")[0] == 0
    found = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in found if event.get("cat") == "fault"] == ["lost: it ended with exit code -9"]
