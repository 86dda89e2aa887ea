"""A newcomer's state comes from memory: the kernel counts what its processes write to a disk, however they write it."""

import os
from pathlib import Path

import pytest

from tests.live.system import System

STATE = 16 << 20
LITTLE = STATE // 16
"""For receipts, logs and where to meet: far more than they take, and far less than the state."""
WAYS = {"shared": ["127.0.0.1"], "socket": ["127.0.0.1", "127.0.0.2"]}


def written(pid: int) -> int:
    """Bytes that a process has had written to disks so far: through calls, mapped files and libraries alike.

    Shared memory and sockets don't count; a file that was deleted again does.
    """
    rows = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(dict(rows)["write_bytes"])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a disk whose writes are counted."""
    before = written(os.getpid())
    (tmp_path / "probe").write_bytes(bytes(1 << 20))
    if written(os.getpid()) - before < 1 << 20:
        pytest.skip(f"{tmp_path} is not on a disk whose writes the kernel counts: choose one with --basetemp")
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
def test_a_newcomer_gets_the_state_and_nothing_touches_a_disk(way: str, disk: Path) -> None:
    hosts = WAYS[way]
    carrying = ("--epochs", "1000", "--ballast", str(STATE), "--checkpoints", str(disk / "kept"), "--every", "1000000")
    with System(disk, "job", *carrying, workers=1, agents=len(hosts), hosts=hosts) as system:
        system.reach(3)
        (holder,) = system.members()
        elsewhere = {"node0": "node1", "node1": "node0"}[holder["agent"]]
        before = written(holder["pid"])
        assert system.handle.scale_out(1, on=elsewhere if way == "socket" else None).ok
        system.reach(system.last_step() + 3)
        newcomer = next(worker for worker in system.members() if worker["worker"] != holder["worker"])
        assert (newcomer["host"] == holder["host"]) is (way == "shared")
        resized = written(holder["pid"]) - before + written(newcomer["pid"])
        assert resized < LITTLE, f"{resized} bytes were written while a state of {STATE} was copied"
        # A disk that is touched is seen: the same state in a checkpoint.
        before = written(holder["pid"]) + written(newcomer["pid"])
        assert system.handle.checkpoint().ok
        assert written(holder["pid"]) + written(newcomer["pid"]) - before >= STATE
