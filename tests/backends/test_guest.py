"""Machines that take part in another's job, played by addresses of this one, with real agents and scripted workers."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from melodeon.backends.addresses import own_towards, require_own
from melodeon.backends.elastic_store import hosted_store
from melodeon.backends.guest import Guest, invitation, take_part
from melodeon.backends.orphan import is_orphan
from melodeon.coord.agent_config import AgentConfig, read_config, write_config
from melodeon.coord.master_state import AgentInfo, JobConfig, MasterState
from melodeon.coord.store import StoreUnreachable
from melodeon.core.errors import NotFound, UsageError
from tests.coord.running import PRELOAD, Running, _processes, eventually, gone

LISTENING = {"listen": "127.0.0.1"}


def visit(run_dir: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "melodeon", "agent", str(run_dir), "--name", "guest", "--address", "127.0.0.2"]
    return subprocess.Popen([*command, "--slots", "2", *options], stdout=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> list[str]:
    """What it said, once it has ended well."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return out.splitlines()


def test_a_guest_takes_workers_and_gives_them_back(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, elastic=LISTENING) as job:
        guest = visit(job.folder)
        job.wait_for("agent_joined", agent="guest", host="127.0.0.2", slots=2)
        assert job.handle.scale_out(2, "guest").ok
        guest.send_signal(signal.SIGTERM)
        here, *_, first, second, left = ended(guest)
        assert here.startswith("here    guest at 127.0.0.2 takes part in test-")
        assert [line.split()[:2] for line in (first, second)] == [["worker", "2"], ["worker", "3"]]
        assert left.endswith("goes on without guest")
        job.wait_for("agent_left", agent="guest")
        assert sorted(job.workers()) == [0, 1]
        assert not job.kinds("agent_lost")


def test_a_guest_without_workers_is_told_of_the_end(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, elastic=LISTENING) as job:
        guest = visit(job.folder)
        job.wait_for("agent_joined", agent="guest")
        job.handle.stop()
        assert "has ended: stopped" in ended(guest)[-1]


def test_a_guests_agent_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, elastic={**LISTENING, "ttl_s": 5.0}) as job:
        guest = visit(job.folder)
        job.wait_for("agent_joined", agent="guest")
        assert job.handle.scale_out(1, "guest").ok
        before = job.workers()
        killed = agent_of(job.folder)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: agent_of(job.folder) not in (0, killed))
        assert job.handle.scale_out(1, "guest").ok, "the one that was started again takes orders"
        assert {worker: job.workers()[worker] for worker in before} == before
        guest.send_signal(signal.SIGINT)
        assert ended(guest)[-1].endswith("goes on without guest")


def test_a_guest_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, elastic=LISTENING) as job:
        guest = visit(job.folder)
        job.wait_for("agent_joined", agent="guest")
        assert job.handle.scale_out(2, "guest").ok
        guest.kill()
        job.wait_for("agent_lost", agent="guest")
        job.wait_for_view(0)
        eventually(lambda: sorted(job.workers()) == [0])
        guest.communicate()


def agent_of(folder: Path) -> int:
    want = f"{folder}/agents/guest/agent.json"
    return next((pid for pid, args in _processes().items() if want in args), 0)


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_guest_ends_when_the_job_stays_away(tmp_path: Path, stands_still: bool) -> None:
    """The job's machine is gone, its store with it: nobody else would end what runs here."""
    token = tmp_path / ".token"
    token.write_text("secret")
    with ExitStack() as away, ThreadPoolExecutor(1) as pool:
        store = away.enter_context(hosted_store(tmp_path / "unused", None, "secret", "127.0.0.1"))
        host = AgentConfig(
            job="job",
            run="1",
            agent="node0",
            host="127.0.0.1",
            slots=1,
            run_dir=str(tmp_path),
            workdir=str(tmp_path),
            socket="",
            store=store.address,
            token_file=str(token),
            argv=("train.py",),
            launch={"host": "127.0.0.1"},
            job_config=JobConfig(job="job"),
            preload=PRELOAD,
            ttl_s=1.0,
        )
        write_config(host.node_dir / "agent.json", host)
        guest = Guest(run_dir=tmp_path, name="guest", slots=1, patience_s=1.0, stuck_s=3.0)
        taking = pool.submit(take_part, guest, on_start=lambda _: None, on_event=lambda _: None)
        eventually(lambda: store.read(f"{host.prefix}agents/guest", "secret"))
        if stands_still:
            os.kill(agent_of(tmp_path), signal.SIGSTOP)
        away.close()
        with pytest.raises(StoreUnreachable, match=r"the store at tcp:.* for 1 s: is its host running\?"):
            taking.result(timeout=60)


def test_a_guests_agent_that_stands_still_is_started_again(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, elastic={**LISTENING, "ttl_s": 1.0}) as job, ThreadPoolExecutor(1) as pool:
        job.wait_for_view(0)
        guest = Guest(run_dir=job.folder, name="guest", slots=2, address="127.0.0.2", stuck_s=1.0)
        taking = pool.submit(take_part, guest, on_start=lambda _: None, on_event=lambda _: None)
        job.wait_for("agent_joined", agent="guest")
        assert job.handle.scale_out(1, "guest").ok
        stuck = agent_of(job.folder)
        os.kill(stuck, signal.SIGSTOP)
        eventually(lambda: agent_of(job.folder) not in (0, stuck))
        eventually(lambda: sorted(job.workers()) == [0])  # nobody else would have ended the guest's worker
        assert job.handle.stop().ok
        assert taking.result(timeout=60), "it hears of the end"
        job.end()


def test_a_script_goes_on_after_its_training_though_the_launcher_has_left(tmp_path: Path) -> None:
    with Running(tmp_path, "rest-1", workers=1, elastic=LISTENING) as job, ThreadPoolExecutor(1) as pool:
        job.wait_for_view(0)
        guest = Guest(run_dir=job.folder, name="guest", slots=1, address="127.0.0.2", patience_s=1.0, stuck_s=1.0)
        taking = pool.submit(take_part, guest, on_start=lambda _: None, on_event=lambda _: None)
        job.wait_for("agent_joined", agent="guest")
        assert job.handle.scale_out(1, "guest").ok
        resting = job.workers()[1]
        assert job.handle.stop().ok
        job.end()
        assert not gone(resting, within_s=5.0), "the store is gone for longer than the guest waits"
        (job.folder / "may-end").touch()
        assert taking.result(timeout=60)
        assert job.log(1).endswith("end of script\n")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere is no run with agents: .*`melodeon run --listen"):
        invitation(tmp_path / "nowhere")


def test_a_job_that_listens_to_nobody(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1) as job, pytest.raises(UsageError, match="takes no other machines: start it with"):
        invitation(job.folder)


def test_what_a_job_that_listens_refuses(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, elastic=LISTENING) as job:
        host = invitation(job.folder)
        elsewhere = shutil.copytree(job.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
        with pytest.raises(UsageError, match=r"run on its own machine and .*copy here: mount it at the same path"):
            invitation(elsewhere)
        guest = Guest(run_dir=job.folder, name="node0", slots=1)
        with pytest.raises(UsageError, match=r"an agent named node0 takes part in job test-.* already: give another"):
            take_part(guest, on_start=lambda _: None, on_event=lambda _: None)
        file = host.node_dir / "agent.json"
        write_config(file, msgspec.structs.replace(read_config(file), workdir=str(tmp_path / "gone")))
        with pytest.raises(UsageError, match=r"trains in .*gone, which is not here"):
            invitation(job.folder)
        write_config(file, host)
    with pytest.raises(NotFound, match="has ended: there is nothing to take part in"):
        invitation(job.folder)


def test_addresses_that_are_not_this_machines() -> None:
    assert require_own("127.0.0.3", "--address") == "127.0.0.3"
    assert own_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(UsageError, match=r"--address 192.0.2.1 is no IPv4 address or name of this machine"):
        require_own("192.0.2.1", "--address")
    with pytest.raises(UsageError, match=r"--listen '0.0.0.0' names no machine: give the address that others"):
        require_own("0.0.0.0", "--listen")
    with pytest.raises(UsageError, match=r"--listen no.such.host.invalid is no IPv4 address or name"):
        require_own("no.such.host.invalid", "--listen")


@pytest.mark.parametrize(
    ("lost", "is_so"), [((), False), (("node0",), False), (("node0", "node1"), True), (("node0", "guest"), False)]
)
def test_a_job_is_an_orphan_when_all_agents_of_its_launcher_are_lost(lost: tuple[str, ...], is_so: bool) -> None:
    state = MasterState(config=JobConfig(job="x"))
    for agent in ("node0", "node1", "guest"):
        state.agents[agent] = AgentInfo(agent=agent, host="h", slots=1, lost=agent in lost)
    assert is_orphan(state, ["node0", "node1"]) == is_so
