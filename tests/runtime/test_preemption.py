"""A worker that is told to go says so, whatever it is doing when the signal comes."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from melodeon.coord.messages import Status
from melodeon.coord.wire import Frames
from melodeon.core.errors import UsageError
from melodeon.runtime import preemption

SPEAKS = """
import signal, sys
import msgspec
from melodeon.runtime import preemption
from melodeon.runtime.link import Link

link = Link(sys.argv[1], 7)
preemption.listen(link)
replace = msgspec.structs.replace

def interrupted(status, **changes):
    made = replace(status, **changes)
    if "step" in changes:
        signal.raise_signal(signal.SIGTERM)  # handled here: between making the new status and keeping it
    return made

msgspec.structs.replace = interrupted
link.post(step=3)
sys.stdin.read()
"""


def hear(connection: socket.socket, most: int) -> list[Status]:
    """What a worker says, until it says that it is to go, or so many times."""
    frames, said = Frames(Status), []
    while len(said) < most and not (said and said[-1].preempted):
        said += frames.feed(connection.recv(1 << 16))
    return said


def test_a_request_to_leave_is_heard_though_it_interrupts_the_worker_in_a_word_of_its_own(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        listener.settimeout(20)
        command = [sys.executable, "-c", SPEAKS, str(tmp_path / "agent.sock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(20)
                said = hear(connection, most=6)
            worker.kill()
    assert (said[-1].step, said[-1].preempted) == (3, True)


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf", "1e9"])
def test_an_allowance_that_cannot_be_is_refused_with_the_rule(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_ALLOWANCE_S", text)
    with pytest.raises(UsageError, match=f"MELODEON_ALLOWANCE_S={text} must be a number of seconds from 0 to 86400"):
        preemption.allowance()


@pytest.mark.parametrize(("text", "seconds"), [("", 30.0), ("0.5", 0.5), ("120", 120.0)])
def test_the_allowance_comes_from_the_environment(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_ALLOWANCE_S", text)
    assert preemption.allowance() == seconds
