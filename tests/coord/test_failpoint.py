"""Failpoints strike who they are meant for, once; a cut is silent, and heals without losing a byte."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from melodeon.coord.cutoff import Cutoff
from melodeon.coord.failpoint import VARIABLE, parse
from melodeon.core.errors import UsageError

PASSES = """
import sys
from melodeon.coord.failpoint import failpoint, identify
identify(sys.argv[1])
for _ in range(3):
    failpoint("a.place")
    print("passed", flush=True)
"""
ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(b"echo " + data)
"""


def passes(variable: str, who: str = "2") -> tuple[int, int]:
    """(exit code, how often the place was passed)"""
    run = subprocess.run(
        [sys.executable, "-c", PASSES, who], env={**os.environ, VARIABLE: variable}, stdout=subprocess.PIPE, check=False
    )
    return run.returncode, run.stdout.count(b"passed")


def test_it_strikes_whom_it_names_the_time_it_names() -> None:
    assert passes("a.place=kill@2/2") == (-signal.SIGKILL, 1)
    assert passes("a.place=kill@2/3") == (0, 3)
    assert passes("another.place=kill") == (0, 3)
    assert passes("a.place=lose@2/2") == (1, 1)


def test_a_file_arms_it_once(tmp_path: Path) -> None:
    armed = tmp_path / "a.place@2"
    armed.write_text("kill")
    assert passes(f"dir:{tmp_path}", who="3") == (0, 3)
    assert passes(f"dir:{tmp_path}") == (-signal.SIGKILL, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["a.place@2.struck"]
    assert passes(f"dir:{tmp_path}") == (0, 3)


def test_what_is_no_failpoint_is_refused() -> None:
    with pytest.raises(UsageError, match="explode"):
        parse("a.place=explode")


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """The port of a process that repeats what it hears, one caller at a time."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def hear(reader: asyncio.StreamReader, timeout_s: float = 5.0) -> bytes:
    async with asyncio.timeout(timeout_s):
        return await reader.read(100)


def test_a_cut_is_silent_and_heals_without_a_loss() -> None:
    async def go() -> None:
        async with echo() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"before")
            assert await hear(reader) == b"echo before"
            cutoff = Cutoff()
            cutoff.begin()
            try:
                writer.write(b"meanwhile")
                with pytest.raises(TimeoutError):
                    await hear(reader, 0.3)
                assert not reader.at_eof()
                second, calling = await asyncio.open_connection("127.0.0.1", port)
                with pytest.raises(TimeoutError):
                    await hear(second, 0.3)
            finally:
                cutoff.heal()
            assert await hear(reader) == b"echo meanwhile"
            assert await hear(second) == b""  # begun in the cut, it led nowhere
            writer.close()
            calling.close()

    asyncio.run(go())


def test_a_look_for_new_sockets_that_comes_after_the_cut_has_healed_does_nothing() -> None:
    async def go() -> None:
        async with echo() as port:
            cutoff = Cutoff()
            cutoff.begin()
            cutoff.heal()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            cutoff._sweep()  # as by the thread that had set out before
            writer.write(b"after")
            assert await hear(reader) == b"echo after"
            writer.close()

    asyncio.run(go())


FROM_A_THREAD = """
import os, threading
from melodeon.coord.failpoint import failpoint
def pass_it():
    failpoint("a.place")
    os.write(1, b"passed")
passing = threading.Thread(target=pass_it)
passing.start()
passing.join()
"""


def test_a_thread_that_is_stopped_does_nothing_more_before_it_is_woken() -> None:
    # The process's other threads are as good a place to take a signal that is not meant for one of them.
    env = {**os.environ, VARIABLE: "a.place=stop"}
    process = subprocess.Popen([sys.executable, "-c", FROM_A_THREAD], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.set_blocking(process.stdout.fileno(), False)
    assert process.stdout.read() is None
    os.set_blocking(process.stdout.fileno(), True)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0] == b"passed"
    assert process.returncode == 0
