import os
import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from melodeon.runtime.lifeline import watch
watch(int(sys.argv[1]))
print("watching", flush=True)
signal.pause()
"""


def start(read: int, *, leader: bool) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(read)],
        pass_fds=(read,), start_new_session=leader, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(read)
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"
    return process


def test_the_group_is_killed_when_the_other_end_closes() -> None:
    read, write = os.pipe()
    with start(read, leader=True) as process:
        assert process.poll() is None
        os.close(write)
        assert process.wait(timeout=30) == -signal.SIGKILL


def test_a_group_that_is_not_its_own_is_spared() -> None:
    read, write = os.pipe()
    with start(read, leader=False) as process:
        os.close(write)
        assert process.wait(timeout=30) == 1
