import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

from melodeon.backends.runs import write_record
from melodeon.coord import registry
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job


def test_without_a_terminal_one_screen_is_printed(place: Path, melodeon: Melodeon) -> None:
    with job(place, "20261115-132710-1fc0") as agent:
        agent.write_event(kind="begin", step=0, total_steps=5000, steps_per_epoch=100)
        agent.write_event(kind="worker_gone", worker=1, how="killed by SIGKILL")
        code, out, _ = melodeon("top")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[0].split() == [agent.job, "training", "view", "3", "step", "1,234", "of", "5,000"]
    assert "│0░" in out
    assert "worker 1 is gone: killed by SIGKILL" in out
    assert "42 ms" in out


def test_a_terminal_that_cannot_show_every_letter_is_shown_the_others(place: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "melodeon", "top", "--once"]
    with job(place, "one") as agent:
        agent.write_event(kind="worker_gone", worker=1, how="größer")
        done = subprocess.run(command, capture_output=True, env=env, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "worker 1 is gone: gr??er" in done.stdout


def test_json_is_the_status(place: Path, melodeon: Melodeon) -> None:
    with job(place, "one") as agent:
        assert json.loads(melodeon("top", "-o", "json")[1]) == agent.status


def test_no_job(place: Path, melodeon: Melodeon) -> None:
    code, _, err = melodeon("top")
    assert (code, err.count("\n")) == (4, 1)


def in_terminal(until: bytes, keys: bytes = b"", then: Callable[[], object] = lambda: None) -> tuple[int, bytes]:
    """`melodeon top` in a terminal of 80 by 30: once `until` is on the screen, type `keys` and do what is to come."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm"}
    env.pop("COLUMNS", None)
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "melodeon", "top"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as process:
        seen = b""
        while until not in seen:
            seen += os.read(ours, 1 << 16)
        os.write(ours, keys)
        then()
        code = process.wait(20)
    assert termios.tcgetattr(theirs) == before, "the terminal is left as it was"
    os.set_blocking(ours, False)
    while True:
        try:
            seen += os.read(ours, 1 << 16)
        except BlockingIOError:
            break
    os.close(ours)
    os.close(theirs)
    return code, seen


def test_q_leaves_the_live_screen(place: Path) -> None:
    with job(place, "live"):
        code, seen = in_terminal(b"1,234", keys=b"q")
    assert code == 0
    assert b"\x1b[?1049l" in seen, "back on the terminal's own page"


def test_a_job_whose_launcher_was_killed_has_ended_lost(place: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher,
        job(place, "live", pid=launcher.pid),
    ):
        code, seen = in_terminal(b"1,234", then=launcher.kill)
    assert (code, b"job live has ended: lost (run: " in seen) == (0, True), seen


def test_how_a_job_ended_is_told_also_where_its_launcher_takes_it_off_the_list_before(place: Path) -> None:
    with job(place, "live") as agent:

        def end() -> None:
            registry.remove("live")
            agent.close()
            record = {"status": "done", "pid": os.getpid()}
            threading.Timer(1.0, write_record, [agent.run_dir, record]).start()

        code, seen = in_terminal(b"1,234", then=end)
    assert (code, b"job live has ended: done (run: " in seen) == (0, True), seen
