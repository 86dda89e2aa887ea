"""Real agents, nurseries and scripted workers: kill or stop any of them, and see the rest go on."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from melodeon.backends.elastic import Elastic, run_elastic
from melodeon.backends.local import Event
from melodeon.coord.agent_config import read_config, write_config
from melodeon.coord.marks import read_marks
from melodeon.coord.master_state import JobConfig
from melodeon.coord.store import Listing, open_store
from melodeon.core.errors import NotFound, Unreachable
from melodeon.core.launch import Launch
from tests.coord.agent_config import make_config
from tests.coord.etcd_process import EtcdMember
from tests.coord.running import PRELOAD, SCRIPT, Running, eventually, gone


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_killed_worker_is_reported_at_once(tmp_path: Path) -> None:
    patient = {"ttl_s": 60.0, "silence_s": 60.0, "resend_s": 60.0}  # nothing follows from a time-out
    with Running(tmp_path, workers=3, elastic=patient) as job:
        job.wait_for_view(0, 1, 2)
        killed_at = time.monotonic()
        os.kill(job.workers()[1], signal.SIGKILL)
        took = [job.noticed(worker, 2) - killed_at for worker in (0, 2)]
        assert job.wait_for("worker_gone", worker=1)["exit_code"] == -9
        view = job.wait_for_view(0, 2)
        assert (view["generation"], view["planned"]) == (2, False)
        print(f"from the kill to the notice: {[f'{s * 1000:.1f} ms' for s in took]}")
        assert max(took) < 2.0  # typically 5 ms; the machine is shared


def test_a_lost_worker_is_replaced_in_the_background(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, restarts=1) as job:
        job.wait_for_view(0, 1)
        os.kill(job.workers()[0], signal.SIGKILL)
        job.wait_for_view(1)
        job.wait_for_view(1, 2)
        # Its output is shown from now on by who has virtual rank 0.
        assert b"hello from 0" in job.output


def test_a_stopped_worker_is_killed_after_its_silence(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, elastic={"silence_s": 1.0}) as job:
        job.wait_for_view(0, 1)
        pid = job.workers()[0]
        os.kill(pid, signal.SIGSTOP)
        job.wait_for_view(1)
        assert gone(pid)


def test_a_killed_agent_comes_back_to_its_workers(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2) as job:
        job.wait_for_view(0, 1)
        workers, agent, nursery = job.workers(), job.agent(), job.nursery()
        before = job.progress()
        os.kill(agent, signal.SIGKILL)
        assert gone(agent)
        assert eventually(lambda: job.agent() != agent)
        eventually(lambda: job.progress() > before + 20)
        assert (job.workers(), job.nursery()) == (workers, nursery)
        assert len(job.kinds("view")) == 1  # nobody trained less for it
        # It is as able as the one before.
        os.kill(workers[0], signal.SIGKILL)
        job.wait_for_view(1)
        job.handle.scale_out()
        job.wait_for_view(1, 2)


def test_a_worker_that_died_while_the_agent_was_away_is_missed(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2) as job:
        job.wait_for_view(0, 1)
        worker, agent = job.workers()[0], job.agent()
        os.kill(agent, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        job.wait_for_view(1)
        assert job.wait_for("worker_gone", worker=0)


def test_a_worker_that_is_stuck_when_the_agent_comes_back_is_killed(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, elastic={"silence_s": 1.0}) as job:
        job.wait_for_view(0, 1)
        worker = job.workers()[0]
        os.kill(worker, signal.SIGSTOP)
        os.kill(job.agent(), signal.SIGKILL)
        assert gone(worker, within_s=10)
        job.wait_for_view(1)


def test_workers_outlive_their_nursery_and_a_new_one_makes_more(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2) as job:
        job.wait_for_view(0, 1)
        workers, nursery = job.workers(), job.nursery()
        os.kill(nursery, signal.SIGKILL)
        job.handle.scale_out()
        job.wait_for_view(0, 1, 2)
        assert {w: job.workers()[w] for w in (0, 1)} == workers
        assert job.nursery() != nursery
        os.kill(workers[1], signal.SIGKILL)  # nobody is its parent any more, and it is missed all the same
        job.wait_for_view(0, 2)


def test_agent_and_nursery_killed_together(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2) as job:
        job.wait_for_view(0, 1)
        workers, agent, nursery = job.workers(), job.agent(), job.nursery()
        for pid in (agent, nursery):
            os.kill(pid, signal.SIGKILL)
        assert gone(agent)
        job.handle.scale_out()
        job.wait_for_view(0, 1, 2)
        assert {w: job.workers()[w] for w in (0, 1)} == workers


def test_another_agent_takes_over_from_a_killed_master(tmp_path: Path) -> None:
    with Running(tmp_path, workers=4, agents=2, elastic={"ttl_s": 4.0}) as job:  # it is back before its lease ends
        job.wait_for_view(0, 1, 2, 3)
        workers = job.workers()
        first = job.kinds("master")[0]
        os.kill(job.agent(int(str(first["agent"])[-1])), signal.SIGKILL)
        second = job.wait_for_another_master()
        assert second["fence"] > first["fence"]
        job.handle.scale_in(workers=[0])
        job.wait_for_view(1, 2, 3)
        assert job.workers() == {w: pid for w, pid in workers.items() if w != 0}


def test_a_job_whose_store_is_etcd_loses_its_master_too(tmp_path: Path, etcd_member: EtcdMember) -> None:
    with Running(tmp_path, workers=4, agents=2, elastic={"store": etcd_member.url, "ttl_s": 4.0}) as job:
        job.wait_for_view(0, 1, 2, 3)
        workers, first = job.workers(), job.kinds("master")[0]
        os.kill(job.agent(int(str(first["agent"])[-1])), signal.SIGKILL)
        second = job.wait_for_another_master()
        assert second["fence"] > first["fence"]  # type: ignore[operator]
        assert job.handle.scale_in(workers=[0]).ok
        job.wait_for_view(1, 2, 3)
        assert job.workers() == {w: pid for w, pid in workers.items() if w != 0}


def test_agents_wait_longer_for_an_etcd_than_one_call_for_the_launchers_store(
    tmp_path: Path, etcd_member: EtcdMember
) -> None:
    for name, store in (("own", None), ("etcd", etcd_member.url)):
        (tmp_path / name).mkdir()
        run_elastic(
            [SCRIPT, "3"], Launch(), tmp_path / name, Elastic(job=JobConfig(job=name), store=store, preload=PRELOAD)
        )
    own, etcd = (read_config(tmp_path / name / "agents/node0/agent.json") for name in ("own", "etcd"))
    assert (own.is_hosted, etcd.is_hosted) == (True, False)
    assert (own.store_s, etcd.store_s) == (10.0, 60.0)


def test_a_job_finds_nothing_of_one_that_had_its_name_and_leaves_nothing(
    tmp_path: Path, etcd_member: EtcdMember
) -> None:
    elastic = Elastic(job=JobConfig(job="again"), store=etcd_member.url, preload=PRELOAD)
    for steps in (3, 5):
        folder = tmp_path / str(steps)
        folder.mkdir()
        events: list[Event] = []
        assert run_elastic([SCRIPT, str(steps)], Launch(), folder, elastic, on_event=events.append).ok
        assert f"trained {steps}\n" in (folder / "worker-0.log").read_text()
        assert [event["kind"] for event in events].count("worker_started") == 1

    async def left() -> Listing:
        async with open_store(etcd_member.url) as store:
            return await store.list("melodeon/again/")

    assert dict(asyncio.run(left())) == {}


def test_a_stopped_master_is_replaced_and_can_do_no_harm_when_it_wakes(tmp_path: Path) -> None:
    with Running(tmp_path, workers=4, agents=2) as job:
        job.wait_for_view(0, 1, 2, 3)
        first = job.kinds("master")[0]
        number = int(str(first["agent"])[-1])
        stopped, lost = job.agent(number), set(_workers_of(job, number))
        os.kill(stopped, signal.SIGSTOP)
        # Its workers live, but nobody can speak for them: they are given up.
        rest = {0, 1, 2, 3} - lost
        job.wait_for_view(*rest)
        assert len(job.kinds("master")) == 2
        os.kill(stopped, signal.SIGCONT)
        for worker, pid in {w: p for w, p in job.workers().items() if w in lost}.items():
            assert gone(pid), worker
        # It is a node like any other again.
        assert job.handle.scale_out(1, on=str(first["agent"])).ok
        job.wait_for_view(*rest, 4)
        assert set(_workers_of(job, number)) == {4}


def test_a_short_stop_is_forgiven(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, elastic={"ttl_s": 4.0, "silence_s": 0.6}) as job:
        job.wait_for_view(0, 1)
        agent, before = job.agent(), job.progress()
        os.kill(agent, signal.SIGSTOP)
        with pytest.raises(Unreachable):
            job.handle.ask("status", timeout_s=1.5)
        os.kill(agent, signal.SIGCONT)
        # Everybody's words lay unread for longer than a worker may be silent.
        eventually(lambda: job.progress() > before + 20)
        assert len(job.kinds("view")) == 1


def _workers_of(job: Running, agent: int) -> list[int]:
    return sorted(read_marks(job.folder / "agents" / f"node{agent}"))


def test_an_agent_whose_jobs_secret_is_gone_says_that_the_job_has_ended(tmp_path: Path) -> None:
    secret, file = tmp_path / ".token", tmp_path / "agent.json"
    write_config(file, replace(make_config(tmp_path), store=f"unix:{tmp_path}/store", token_file=str(secret)))
    command = [sys.executable, "-m", "melodeon.coord.agent", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == NotFound.exit_code
    assert done.stderr == f"error: job j has ended: {secret} is gone with its launcher\n"
