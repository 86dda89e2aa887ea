"""Whole jobs, resized and hurt from outside: the receipts are those of an undisturbed run, step by step."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.coord.running import gone
from tests.live.storm import storm
from tests.live.system import LIMIT_S, System, undisturbed

ARGUMENTS = ("--epochs", "8", "--pace", "0.01")  # 200 steps of at least 60 ms on one worker


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("expected"), "--epochs", "8")


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


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
        assert system.finished().receipt() == expected
        views = system.events("view")
        assert [len(view["workers"]) for view in views] == [1, 3, 2, 2, 1]
        assert all(view["reason"] for view in views)


def test_a_worker_told_to_go_leaves_without_a_loss(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=2) as system:
        system.reach(5)
        pids = system.pids()
        os.kill(pids[0], signal.SIGTERM)
        system.until(lambda: 0 not in system.pids())
        assert system.finished().receipt() == expected
        assert not [event for event in system.events("worker_gone") if event["worker"] == 0 and event["exit_code"]]


def test_a_worker_that_is_not_let_go_in_time_goes_all_the_same(tmp_path: Path, expected: dict[int, str]) -> None:
    allowance = {"MELODEON_ALLOWANCE_S": "0.5"}
    with System(tmp_path, "job", *ARGUMENTS, env=allowance, workers=2, ttl_s=30.0) as system:
        system.reach(5)
        agent, worker = system.agent_pid(), system.pids()[0]
        assert agent is not None
        system.hurt(agent, signal.SIGSTOP)  # nobody can let it go
        system.hurt(worker, signal.SIGTERM)
        assert gone(worker)
        system.hurt(agent, signal.SIGCONT)
        assert system.finished().receipt() == expected
        assert [len(view["workers"]) for view in system.events("view")] == [2, 1]


def test_a_slow_worker_gets_less_and_then_goes(tmp_path: Path, expected: dict[int, str]) -> None:
    slow = ("--slow", "1:0.15")  # far slower than the others are on a busy machine
    with System(tmp_path, "job", *ARGUMENTS, *slow, workers=3, straggler_patience=5) as system:
        assert system.well().receipt() == expected
        less, goes = (event for event in system.events("straggler") if event["worker"] == 1)
        assert "it gets 1 virtual worker instead of 2" in less["why"]
        assert "fewer virtual workers did not help: it is removed" in goes["why"]
        assert 1 not in system.events("view")[-1]["workers"]


def test_lost_workers_are_replaced(tmp_path: Path, expected: dict[int, str]) -> None:
    with System(tmp_path, "job", *ARGUMENTS, workers=2, restarts=1) as system:
        system.reach(5)
        system.hurt(system.pids()[1])
        assert system.events("joined")[0]["assignment"] == "3,3"  # how it begins, though no view has come yet
        system.until(lambda: sorted(system.pids()) == [0, 2])
        assert system.status()["restarts_left"] == 0
        assert system.finished().receipt() == expected


def test_all_are_lost_and_the_checkpoint_is_read(tmp_path: Path, expected: dict[int, str]) -> None:
    arguments = (*ARGUMENTS, "--checkpoints", str(tmp_path / "checkpoints"))
    with System(tmp_path, "job", *arguments, workers=2, restarts=5) as system:
        system.reach(25)
        pids = system.pids()
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # so that the second one does not train on alone
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert system.finished().receipt() == expected
        notes = [event["text"] for event in system.events("note")]
        assert any("resumed from" in note for note in notes), notes


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_read(tmp_path: Path, expected: dict[int, str]) -> None:
    folder = tmp_path / "checkpoints"
    arguments = ("--epochs", "8", "--checkpoints", str(folder))
    with System(tmp_path, "job", *arguments, workers=2) as system:
        system.well()
    good, damaged = sorted(folder.iterdir())[-2:]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with System(tmp_path, "again", *arguments, workers=3) as system:
        system.well()
        refused, resumed = (event["text"] for event in system.events("note"))
        assert refused.startswith(f"checkpoint {damaged} is refused: ")
        assert resumed.startswith(f"resumed from {good} at step ")
        step = int(resumed.rpartition(" ")[2])
        assert system.receipt(after=step) == {later: expected[later] for later in expected if later > step}


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
    with System(tmp_path, "again", *arguments, "--pace", "0", workers=3) as system:
        rest = system.well().receipt(after=max(stopped))
    assert rest == {step: expected[step] for step in expected if step > max(stopped)}


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
        assert [has_torch(pid) for pid in (agent, *before.values())] == [False, True, True]
        system.hurt(agent)
        system.until(lambda: system.agent_pid() not in (None, agent))
        assert system.pids() == before
        system.handle.scale(3)
        assert system.finished().receipt() == expected


def test_all_workers_of_the_masters_agent_leave(tmp_path: Path, expected: dict[int, str]) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    with System(tmp_path, "job", *ARGUMENTS, workers=4, agents=2, hosts=hosts, ttl_s=10.0) as system:
        system.reach(5)
        master = system.events("master")[-1]["agent"]
        near, far = (
            [worker["worker"] for worker in system.members() if (worker["agent"] == master) is here]
            for here in (True, False)
        )
        assert system.handle.scale_in(workers=near).ok
        assert sorted(system.pids()) == far
        assert system.events("master")[-1]["agent"] == master  # it leads on, without a worker
        assert system.finished().receipt() == expected


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
        assert system.finished().receipt() == expected


@pytest.mark.timeout(400)
def test_a_storm(tmp_path: Path) -> None:
    receipt, expected = storm(tmp_path, seed=5, faults=40, steps=600)
    assert len(receipt) == 600
    assert receipt == expected


FAILS = """
import torch
import melodeon

job = melodeon.join(virtual_workers=1, seed=0)
model = torch.nn.Linear(2, 2)
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=1)
for _ in job.epochs(1):
    for _ in loader:
        {}["missing"]
"""


def test_a_scripts_own_error_is_told_with_its_type(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    with System(tmp_path, "job", script=script) as system:
        assert system.process.wait(LIMIT_S) == 1
        record = json.loads((system.run_dir / "run.json").read_text())
        assert (record["status"], record["reason"]) == ("failed", "worker 0 failed: KeyError: 'missing'")
