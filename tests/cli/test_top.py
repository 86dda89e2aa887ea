import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

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


def test_json_is_the_status(place: Path, melodeon: Melodeon) -> None:
    with job(place, "one") as agent:
        assert json.loads(melodeon("top", "-o", "json")[1]) == agent.status


def test_no_job(place: Path, melodeon: Melodeon) -> None:
    code, _, err = melodeon("top")
    assert (code, err.count("\n")) == (4, 1)


def in_terminal(keys: bytes, until: bytes) -> tuple[int, bytes]:
    """`melodeon top` in a terminal of 80 by 30: type `keys` once `until` is on the screen."""
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
        code, seen = in_terminal(b"q", b"1,234")
    assert code == 0
    assert b"\x1b[?1049l" in seen, "back on the terminal's own page"
