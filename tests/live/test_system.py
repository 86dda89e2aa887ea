"""Whole jobs, resized and hurt from outside: the receipts are those of an undisturbed run, step by step."""

import os
import signal
from pathlib import Path

import pytest

from tests.live.storm import storm
from tests.live.system import System, undisturbed

ARGUMENTS = ("--epochs", "8", "--pace", "0.01")  # 200 steps of at least 60 ms on one worker


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("expected"), "--epochs", "8")


def test_a_person_resizes_migrates_and_looks(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=1) as system:
        system.reach(3)
        handle = system.handle
        assert handle.scale_out(2).ok
        assert len(system.members()) == 3
        assert handle.scale_in(workers=[0]).ok  # the one with virtual rank 0, who writes the run's files
        assert sorted(system.pids()) == [1, 2]
        handle.migrate(1)
        assert 1 not in system.pids()
        handle.scale(1)
        assert len(system.members()) == 1
        assert system.well().receipt() == expected
        views = system.events("view")
        assert [len(view["workers"]) for view in views] == [1, 3, 2, 2, 1]
        assert all(view["reason"] for view in views)


def test_a_worker_told_to_go_leaves_without_a_loss(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=2) as system:
        system.reach(5)
        pids = system.pids()
        os.kill(pids[0], signal.SIGTERM)
        system.until(lambda: 0 not in system.pids())
        assert system.well().receipt() == expected
        assert not [event for event in system.events("worker_gone") if event["worker"] == 0 and event["exit_code"]]


def test_a_slow_worker_gets_less_and_then_goes(tmp_path: Path, expected: dict[int, str]) -> None:
    slow = ("--slow", "1:0.05")
    with System(tmp_path, "job", *ARGUMENTS, *slow, workers=3, straggler_patience=5) as system:
        system.until(lambda: bool(system.events("straggler")))
        system.until(lambda: 1 not in system.pids() or system.process.poll() is not None)
        assert system.well().receipt() == expected
        said = system.events("straggler")
        assert said[0]["worker"] == 1
        assert any(view["assignment"] != "2,2,2" for view in system.events("view"))


def test_lost_workers_are_replaced(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=2, restarts=1) as system:
        system.reach(5)
        system.hurt(system.pids()[1])
        assert system.events("joined")[0]["assignment"] == "3,3"  # how it begins, though no view has come yet
        system.until(lambda: sorted(system.pids()) == [0, 2])
        assert system.status()["restarts_left"] == 0
        assert system.well().receipt() == expected


def test_all_are_lost_and_the_checkpoint_is_read(tmp_path: Path, expected: dict[int, str]) -> None:
    arguments = (*ARGUMENTS, "--checkpoints", str(tmp_path / "checkpoints"))
    with System(tmp_path, "job", *arguments, workers=2, restarts=5) as system:
        system.reach(25)
        pids = system.pids()
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # so that the second one does not train on alone
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert system.well().receipt() == expected
        notes = [event["text"] for event in system.events("note")]
        assert any("resumed from" in note for note in notes), notes


def test_a_person_asks_for_a_checkpoint_and_stops_the_job(tmp_path: Path, expected: dict[int, str]) -> None:
    folder = tmp_path / "checkpoints"
    arguments = (*ARGUMENTS, "--checkpoints", str(folder))
    with System(tmp_path, "job", *arguments, workers=2) as system:
        system.reach(3)
        assert system.handle.checkpoint().ok
        assert list(folder.iterdir())
        assert system.handle.stop().ok
        system.end()
        stopped = system.receipt()
        assert 0 < len(stopped) < len(expected)
        assert stopped == {step: expected[step] for step in stopped}
    with System(tmp_path, "again", *arguments, workers=3) as system:
        rest = system.well().run_dir / "receipt.jsonl"
    assert str(expected[200]) in rest.read_text()


def test_profile_walks_the_sizes_and_comes_back(tmp_path: Path) -> None:
    with System(tmp_path, "job", "--epochs", "60", "--pace", "0.005", workers=1) as system:
        system.reach(3)
        answer = system.handle.profile(1, 4)
        sizes = {int(size) for size in answer.values["rates"]}
        assert {1, 2} <= sizes
        assert len(system.members()) == 1


def test_the_agent_is_killed_and_nobody_notices(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=2) as system:
        system.reach(5)
        before = system.pids()
        agent = system.agent_pid()
        assert agent is not None
        system.hurt(agent)
        system.until(lambda: system.agent_pid() not in (None, agent))
        assert system.pids() == before
        system.handle.scale(3)
        assert system.well().receipt() == expected


def test_two_nodes_and_the_masters_one_is_lost(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=4, agents=2, hosts=["127.0.0.1", "127.0.0.2"]) as system:
        system.reach(5)
        assert {worker["agent"] for worker in system.members()} == {"node0", "node1"}
        master = [event["agent"] for event in system.events("master")][-1]
        agent = system.agent_pid(master)
        assert agent is not None
        system.hurt(agent, signal.SIGSTOP)  # silent, but not dead: it must be refused when it comes back
        system.until(lambda: [event["agent"] for event in system.events("master")][-1] != master)
        system.reach(system.last_step() + 5)
        system.hurt(agent, signal.SIGCONT)
        assert system.well().receipt() == expected


@pytest.mark.timeout(400)
def test_a_storm(tmp_path: Path) -> None:
    receipt, expected = storm(tmp_path, seed=5, faults=40, steps=600)
    assert len(receipt) == 600
    assert receipt == expected
