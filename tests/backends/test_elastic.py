"""The launcher of elastic jobs, with real agents and scripted workers."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from melodeon.backends import agents
from melodeon.backends.elastic import Elastic, run_elastic
from melodeon.backends.elastic_end import reason_of
from melodeon.backends.elastic_store import StoreThread
from melodeon.backends.local import Event
from melodeon.backends.outcome import STOPPED, Outcome
from melodeon.backends.rollcall import Absences
from melodeon.coord import registry
from melodeon.coord.lastwords import write_last_words
from melodeon.coord.marks import started
from melodeon.coord.master_state import JobConfig, MasterState, WorkerInfo
from melodeon.coord.messages import Phase, Status
from melodeon.coord.store import StoreUnreachable
from melodeon.core.errors import UsageError, sentence_of
from melodeon.core.launch import Launch
from tests.coord.running import PRELOAD, SCRIPT, Running, events_file, eventually, gone, resume


def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, steps=30) as job:
        assert job.end() == Outcome(exit_code=0)
    assert job.output.startswith(b"hello from 0\n")
    assert job.output.endswith(b"trained 30\nend of script\n")
    assert job.output == (job.folder / "worker-0.log").read_bytes()
    assert job.kinds("end")[-1]["outcome"] == "done"
    assert job.kinds("step")
    assert job.events == events_file(job.folder)
    assert all("at" in event for event in job.events)
    assert job.all_processes() == []
    assert registry.entries() == []
    # No secret, no socket is left lying about.
    assert not [path for path in job.folder.rglob("*") if path.suffix == ".sock" or path.name == ".token"]


def test_several_agents_share_the_workers(tmp_path: Path) -> None:
    with Running(tmp_path, workers=4, agents=2, steps=30) as job:
        assert job.end().ok
    started_on = [event["agent"] for event in job.kinds("worker_started")]
    assert sorted(map(str, started_on)) == ["node0", "node0", "node1", "node1"]
    assert job.all_processes() == []


def test_a_failing_script_fails_the_job_with_a_sentence(tmp_path: Path) -> None:
    with Running(tmp_path, "fail-1", workers=2) as job:
        outcome = job.end()
    assert (outcome.exit_code, outcome.ok) == (1, False)
    assert "worker 1 ended with exit code 1" in str(outcome.reason)
    assert "ValueError: this worker was told to fail" in job.log(1)
    assert job.all_processes() == []


def test_what_a_script_does_after_training_counts(tmp_path: Path) -> None:
    with Running(tmp_path, "fail-after", workers=2, steps=20) as job:
        outcome = job.end()
    assert (outcome.exit_code, outcome.ok) == (1, False)
    assert "ended with exit code 3" in str(outcome.reason)


def test_output_follows_virtual_rank_0(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2) as job:
        job.wait_for_view(0, 1)
        os.kill(job.workers()[0], signal.SIGKILL)
        job.wait_for_view(1)
        assert job.handle.stop().ok
        job.end()
    assert job.output.count(b"hello from") == 1
    assert job.output.endswith(b"end of script\n")


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:99999", "tcp:127.0.0.1:65536"])
def test_a_wrong_store_is_told_before_anything_starts(tmp_path: Path, address: str) -> None:
    elastic = Elastic(job=JobConfig(job="x"), store=address, preload=PRELOAD)
    with pytest.raises(UsageError, match=f"'{address}'"):
        run_elastic([SCRIPT, "1"], Launch(), tmp_path, elastic)
    assert not list(tmp_path.rglob("agent.log"))


def test_a_job_that_runs_elsewhere_under_its_name_is_left_alone(tmp_path: Path) -> None:
    other = registry.Entry(
        id="x", run_dir="/runs/x", pid=os.getpid(), started=started(os.getpid()) or 0, agents=(), created="2026-01-01"
    )
    registry.write(other)
    with pytest.raises(UsageError, match=r"^job 'x' runs already in /runs/x: give another --name$"):
        run_elastic([SCRIPT, "1"], Launch(), tmp_path, Elastic(job=JobConfig(job="x"), preload=PRELOAD))
    assert registry.entries() == [other]
    assert not list(tmp_path.rglob("agent.log"))


def test_whoever_finds_a_job_finds_what_its_folder_tells_guests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, told = registry.write, []

    def write_and_look(entry: registry.Entry, *, alone: bool) -> None:
        write(entry, alone=alone)
        told.extend(sorted(Path(entry.run_dir).glob("agents/*/agent.json")))

    monkeypatch.setattr(registry, "write", write_and_look)
    with Running(tmp_path, workers=2, agents=2, steps=5) as job:
        assert job.end().ok
    assert told == [job.folder / "agents" / agent / "agent.json" for agent in ("node0", "node1")]


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_store_that_is_gone_at_the_end_is_no_failure_of_the_launcher(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise StoreUnreachable("the store at http://10.0.0.9:2379 does not answer")

    def interrupt(event: Event) -> None:
        if interrupted and event["kind"] == "view":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StoreThread, "read", gone)
    (tmp_path / "run").mkdir()
    elastic = Elastic(job=JobConfig(job="x", workers=1), preload=PRELOAD)
    command = [SCRIPT, "100000" if interrupted else "3"]
    outcome = run_elastic(command, Launch(), tmp_path / "run", elastic, on_event=interrupt)
    text = "the agents ended, and none of them said how the job did: the store at http://10.0.0.9:2379 does not answer"
    assert outcome == (STOPPED if interrupted else Outcome(exit_code=1, reason=text))


def test_an_error_keeps_its_exit_code_where_its_event_was_never_written(tmp_path: Path) -> None:
    state = MasterState(config=JobConfig(job="x"), outcome="failed", text="batch_size=0 must be more", failed=(3, 2))
    outcome = reason_of(msgspec.json.encode(state), tmp_path, [])
    assert outcome == Outcome(exit_code=2, worker=3, reason="batch_size=0 must be more")


def test_an_error_whose_worker_is_seen_to_end_first_keeps_its_exit_code(tmp_path: Path) -> None:
    sentence = "2 workers cannot share 1 virtual worker: each runs at least one"
    for worker, code in ((0, 1), (1, 2)):
        error = sentence_of(worker, "UsageError", sentence if worker else "another")
        words = Status(worker=worker, pid=1, number=3, phase=Phase.STARTING, error=error, exit_code=code)
        write_last_words(tmp_path, words)
    state = MasterState(config=JobConfig(job="x"), outcome="failed", text=sentence_of(1, "UsageError", sentence))
    outcome = reason_of(msgspec.json.encode(state), tmp_path, [])
    assert outcome == Outcome(exit_code=2, worker=1, reason=state.text)


def test_nobody_is_done_without_a_worker_that_has_trained(tmp_path: Path) -> None:
    state = MasterState(config=JobConfig(job="x"), outcome="done")
    state.workers[0] = WorkerInfo(worker=0, agent="node0", slot=0, finished=True)
    outcome = reason_of(msgspec.json.encode(state), tmp_path, [])
    assert outcome is not None
    assert (outcome.exit_code, "no worker of this run has trained" in str(outcome.reason)) == (1, True)
    (tmp_path / "worker-0.log").touch()
    assert reason_of(msgspec.json.encode(state), tmp_path, []) == Outcome(exit_code=0)


@pytest.mark.parametrize("factor", [0.5, -1.0, float("inf"), float("nan")])
def test_a_straggler_factor_that_tells_nobody_apart_is_refused(factor: float) -> None:
    with pytest.raises(UsageError, match=f"a straggler factor of {factor} .*: give 0, .* or a number of at least 1"):
        Elastic(job=JobConfig(job="x", straggler_factor=factor))


def test_an_agent_that_keeps_failing_ends_the_job(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1) as job:
        job.wait_for_view(0)
        (job.folder / ".token").unlink()
        os.kill(job.agent(), signal.SIGKILL)
        outcome = job.end()
    assert "agent node0 ended 5 times within 10 s" in str(outcome.reason)
    assert job.all_processes() == []


def test_a_full_disk_is_named_where_agents_cannot_say_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "has_room", lambda _: False)
    with Running(tmp_path, workers=1) as job:
        job.wait_for_view(0)
        (job.folder / ".token").unlink()
        os.kill(job.agent(), signal.SIGKILL)
        outcome = job.end()
    assert str(outcome.reason).endswith(f": no room is left on the disk of {job.folder / 'agents' / 'node0'}")


def test_an_agent_that_keeps_being_killed_does_not(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, steps=200) as job:
        job.wait_for_view(0)
        last = 0
        for _ in range(6):
            last = eventually(lambda last=last: (pid := job.agent()) != last and pid)
            os.kill(last, signal.SIGKILL)
        assert job.end().ok


def test_a_nursery_that_cannot_start_fails_the_job(tmp_path: Path) -> None:
    elastic = {"preload": ("no_such_module",)}
    with Running(tmp_path, workers=1, elastic=elastic) as job:
        outcome = job.end()
    assert "No module named 'no_such_module'" in str(outcome.reason)
    assert job.all_processes() == []


class Launcher:
    """A launcher as its own process."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder / "run"
        self.folder.mkdir()
        code = f"""
            import sys
            from pathlib import Path
            from melodeon.backends.elastic import Elastic, run_elastic
            from melodeon.coord.master_state import JobConfig
            from melodeon.core.launch import Launch
            job = JobConfig(job="signals", workers=2)
            outcome = run_elastic({[SCRIPT, "100000", *args]!r}, Launch(), Path({str(self.folder)!r}),
                                  Elastic(job=job, preload={PRELOAD!r}),
                                  on_event=lambda e: print(e["kind"], flush=True))
            print(outcome.reason, flush=True)
            sys.exit(outcome.exit_code)
        """
        self.process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)

    def wait_until_training(self) -> list[int]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == b"view\n":
                break
        marked = [int(path.read_text().split()[0]) for path in self.folder.glob("agents/*/*.pid")]
        return [*marked, *_children(self.process.pid)]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ctrl_c_stops_at_a_step_boundary(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    try:
        pids = launcher.wait_until_training()
        assert len(pids) == 4  # a nursery, two workers, an agent
        launcher.process.send_signal(signal.SIGINT)
        output, _ = launcher.process.communicate(timeout=30)
        assert launcher.process.returncode == 7
        assert output.endswith(b"the run was stopped on request\n")
        assert (launcher.folder / "worker-0.log").read_text().endswith("end of script\n")
        assert [pid for pid in pids if started(pid)] == []
    finally:
        launcher.close()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "deaf")
    try:
        pids = launcher.wait_until_training()
        launcher.process.send_signal(signal.SIGTERM)
        eventually(lambda: '"ask"' in (launcher.folder / "events.jsonl").read_text())
        assert launcher.process.poll() is None
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(10) == 7
        assert [pid for pid in pids if started(pid)] == []
    finally:
        launcher.close()


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    try:
        pids = launcher.wait_until_training()
        launcher.process.kill()
        launcher.process.wait()
        assert all(gone(pid) for pid in pids)
    finally:
        launcher.close()


@pytest.mark.parametrize("stopped", ["agent", "nursery"])
def test_nothing_outlives_a_killed_launcher_when_somebody_is_stuck(tmp_path: Path, stopped: str) -> None:
    launcher = Launcher(tmp_path)
    try:
        pids = launcher.wait_until_training()
        agent = _children(launcher.process.pid)[0]
        stuck = (
            agent if stopped == "agent" else int((launcher.folder / "agents/node0/nursery.pid").read_text().split()[0])
        )
        os.kill(stuck, signal.SIGSTOP)
        launcher.process.kill()
        launcher.process.wait()
        assert all(gone(pid) for pid in pids if pid != stuck)
        resume(stuck)  # unless it was killed: an agent does not wait for a stuck nursery
        assert gone(stuck)
    finally:
        launcher.close()


def test_an_agent_that_stands_still_is_started_again(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, elastic={"stuck_s": 1.0}) as job:
        job.wait_for_view(0, 1)
        workers, stuck = job.workers(), job.agent()
        os.kill(stuck, signal.SIGSTOP)
        assert gone(stuck)
        assert job.handle.scale_out(1).ok, "the one in its place takes wishes"
        assert {worker: job.workers()[worker] for worker in workers} == workers


def test_a_job_ends_though_an_agent_stands_still(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, agents=2, elastic={"stuck_s": 1.0}) as job:
        job.wait_for_view(0, 1)
        os.kill(job.agent(1), signal.SIGSTOP)
        assert job.handle.stop().ok
        assert job.end() == STOPPED
    assert job.all_processes() == []


def test_who_is_missing_has_been_there() -> None:
    absences = Absences(10.0)
    assert absences.missing({"a": 1, "b": 2}, ["a"], 0.0) == []
    assert absences.missing({"a": 1, "b": 2}, [], 20.0) == []
    assert absences.missing({"a": 1, "b": 2}, [], 29.0) == []
    assert absences.missing({"a": 1, "b": 2}, [], 30.0) == ["a"], "b may be starting still"
    assert absences.missing({"a": 3, "b": 2}, [], 40.0) == [], "another process, which begins anew"
    assert absences.missing({"a": 3, "b": 2}, ["a", "b"], 41.0) == []
    assert absences.missing({"a": 3, "b": 2}, ["b"], 42.0) == []
    assert absences.missing({"a": 3, "b": 2}, ["a"], 51.0) == []
    assert absences.missing({"a": 3, "b": 2}, ["b"], 52.0) == [], "it had come back"


def test_events_are_json_lines(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, steps=10) as job:
        job.end()
    for line in (job.folder / "events.jsonl").read_text().splitlines():
        assert json.loads(line)["kind"]
