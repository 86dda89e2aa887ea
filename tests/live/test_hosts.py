"""Jobs on several machines: others come, are wanted back, lose power or their cable, and the bits stay the same.

The machines have networks and processes of their own (tests/live/hosts.py), and see one folder.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from melodeon.coord.client import JobHandle
from melodeon.coord.marks import started
from melodeon.coord.registry import Entry
from tests.live.hosts import Host, Hosts, inside
from tests.live.system import LIMIT_S, System, undisturbed
from tests.packages import find_programs

EPOCHS = ("--epochs", "32")
PACE = ("--pace", "0.01")
"""800 steps, of at least 60 ms on one worker: nobody waits for the last of them."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("expected"), *EPOCHS)


def assert_begins(expected: dict[int, str], receipt: dict[int, str]) -> None:
    """Every step so far has the bits of an undisturbed run."""
    assert len(receipt) > 10
    assert receipt == {step: expected[step] for step in receipt}


class Hosted(System):
    """A job whose launcher is on one of the machines, and that takes the others in."""

    spokesman = "node0"
    """The agent that wishes are told to."""

    def __init__(self, folder: Path, host: Host, **options: object) -> None:
        super().__init__(folder, "job", *EPOCHS, *PACE, enter=host.command(), listen=host.address, **options)

    def _find(self) -> bool:
        socket = self.run_dir / "agents" / self.spokesman / "agent.sock"
        if socket.exists():
            # Machines have lists of jobs of their own, which tell processes by their machine's numbers.
            mine = {"pid": os.getpid(), "started": started(os.getpid()) or 0}
            entry = Entry(id="job", run_dir=str(self.run_dir), agents=(str(socket),), created="", **mine)
            self._handle = JobHandle(entry)
        return socket.exists()

    def speak_to(self, agent: str, process: subprocess.Popen[bytes]) -> None:
        """The launcher is gone: this one knows the job as well."""
        self.spokesman, self._handle, self.process = agent, None, process

    def stopped(self) -> dict[int, str]:
        """End the job; what it has trained until then."""
        assert self.handle.stop().ok
        self.end()
        return self.receipt()

    def visit(self, host: Host, *options: str) -> subprocess.Popen[bytes]:
        """`melodeon agent` on another machine."""
        command = [sys.executable, "-m", "melodeon", "agent", str(self.run_dir), "--name", "guest", "--slots", "2"]
        return host.start("guest", *command, *options)

    def grow(self, count: int) -> None:
        """Have workers on the guest."""
        self.until(lambda: {"agent": "guest", "lost": False} in self._agents())
        assert self.handle.scale_out(count, "guest").ok
        assert [worker["agent"] for worker in self.members()].count("guest") == count

    def _agents(self) -> list[dict[str, object]]:
        return [{"agent": agent["agent"], "lost": agent["lost"]} for agent in self.status()["agents"]]


def test_a_machine_comes_and_is_wanted_back(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], workers=2) as system:
        system.reach(3)
        visit = system.visit(hosts.all[1], "--json")
        system.grow(2)
        system.reach(system.last_step() + 3)
        os.kill(inside(visit), signal.SIGTERM)
        assert visit.wait(LIMIT_S) == 0
        assert {worker["agent"] for worker in system.members()} == {"node0"}
        told = [json.loads(line) for line in hosts.all[1].log("guest").read_text().splitlines()]
        assert [line["kind"] for line in told] == ["here", "worker", "worker", "left"]
        assert_begins(expected, system.stopped())
        assert [event["exit_code"] for event in system.events("worker_gone")][:2] == [0, 0]
        assert system.events("agent_left")
        assert not system.events("agent_lost")


def test_all_workers_move_to_another_machine_which_sees_the_end(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], workers=1) as system:
        system.reach(3)
        visit = system.visit(hosts.all[1])
        system.grow(1)
        assert system.handle.scale_in(workers=[0]).ok  # virtual rank 0, who writes the run's files
        assert {worker["agent"] for worker in system.members()} == {"guest"}
        assert_begins(expected, system.stopped())
        assert visit.wait(LIMIT_S) == 0
        assert "job has ended: stopped after" in hosts.all[1].log("guest").read_text()


def test_a_machine_loses_its_power(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], workers=1) as system:
        system.reach(3)
        system.visit(hosts.all[1])
        system.grow(2)
        system.reach(system.last_step() + 3)
        hosts.all[1].power_off()
        assert_begins(expected, system.stopped())
        assert [event["agent"] for event in system.events("agent_lost")] == ["guest"]
        assert len(system.events("view")[-1]["workers"]) == 1


def test_a_machine_is_cut_off_and_comes_back(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], workers=1) as system:
        system.reach(3)
        system.visit(hosts.all[1])
        system.grow(1)
        system.reach(system.last_step() + 3)
        hosts.cut(hosts.all[1])
        system.until(lambda: len(system.members()) == 1)
        system.reach(system.last_step() + 3)
        hosts.mend(hosts.all[1])
        system.grow(1)  # its old worker was refused: this is a new one
        assert_begins(expected, system.stopped())
        assert sorted({worker for view in system.events("view") for worker in view["workers"]}) == [0, 1, 2]


def test_the_launchers_machine_loses_its_power_and_the_job_goes_on(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 3) as hosts:
        launcher, other, keeper = hosts.all
        url = f"http://{keeper.address}:2379"
        etcd = [*find_programs("etcd"), "--data-dir", str(tmp_path / "etcd"), "--advertise-client-urls", url]
        serving = keeper.start("etcd", *etcd, "--listen-client-urls", url)
        with Hosted(tmp_path, launcher, workers=1, store=url) as system:
            system.reach(3)
            visit = system.visit(other)
            system.grow(1)
            system.reach(system.last_step() + 3)
            launcher.power_off()
            system.end()
            system.speak_to("guest", visit)
            system.until(lambda: [worker["agent"] for worker in system.members()] == ["guest"])
            system.reach(system.last_step() + 5)
            assert_begins(expected, system.stopped())
            assert visit.returncode == 0, other.log("guest").read_text()
            assert [event["agent"] for event in system.events("master")][-1] == "guest"
        assert serving.poll() is None
