"""Jobs on several machines: others come, are wanted back, lose power or their cable, and the bits stay the same.

The machines have networks and processes of their own (tests/live/hosts.py), and see one folder.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.live.hosted import Hosted
from tests.live.hosts import Hosts, inside
from tests.live.system import LIMIT_S, undisturbed
from tests.packages import find_programs

EPOCHS = ("--epochs", "32")
LASTING = (*EPOCHS, "--pace", "0.01")
"""800 steps, of at least 60 ms on one worker: nobody waits for the last of them."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("expected"), *EPOCHS)


def assert_begins(expected: dict[int, str], receipt: dict[int, str]) -> None:
    """Every step so far has the bits of an undisturbed run."""
    assert len(receipt) > 10
    assert receipt == {step: expected[step] for step in receipt}


def test_a_machine_comes_and_is_wanted_back(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], *LASTING, workers=2) as system:
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
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], *LASTING, workers=1) as system:
        system.reach(3)
        visit = system.visit(hosts.all[1])
        system.grow(1)
        assert system.handle.scale_in(workers=[0]).ok  # virtual rank 0, who writes the run's files
        assert {worker["agent"] for worker in system.members()} == {"guest"}
        assert_begins(expected, system.stopped())
        assert visit.wait(LIMIT_S) == 0
        assert "job has ended: stopped after" in hosts.all[1].log("guest").read_text()


def test_a_machine_loses_its_power(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], *LASTING, workers=1) as system:
        system.reach(3)
        system.visit(hosts.all[1])
        system.grow(2)
        system.reach(system.last_step() + 3)
        hosts.all[1].power_off()
        assert_begins(expected, system.stopped())
        assert [event["agent"] for event in system.events("agent_lost")] == ["guest"]
        assert len(system.events("view")[-1]["workers"]) == 1


def test_a_machine_is_cut_off_and_comes_back(tmp_path: Path, expected: dict[int, str]) -> None:
    with Hosts(tmp_path / "hosts", 2) as hosts, Hosted(tmp_path, hosts.all[0], *LASTING, workers=1) as system:
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
        with Hosted(tmp_path, launcher, *LASTING, workers=1, store=url) as system:
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
            # The launcher would have written it.
            record = json.loads((system.run_dir / "run.json").read_text())
            assert (record["status"], record["exit_code"], record["last_workers"]) == ("stopped", 7, 1)
            assert (record["steps"], record["virtual_workers"]) == (max(system.receipt()), 6)
            assert record["reason"] == "the run was stopped on request"
            assert len(record["digest"]) == 64
        assert serving.poll() is None
