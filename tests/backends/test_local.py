"""Real processes: small scripts without torch that speak the worker's side of the protocol."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from melodeon.backends.local import Event, run_local
from melodeon.backends.outcome import Outcome
from melodeon.core.launch import Launch

PRELUDE = """
import json, os, signal, subprocess, sys
from melodeon.core.launch import Launch
launch = Launch.from_env(os.environ)
def send(**event):
    os.write(launch.event_fd, (json.dumps(event) + chr(10)).encode())
def block():
    signal.pause()
"""


class Runner:
    """Runs a script's text on some workers and keeps what was heard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def run(self, body: str, num_workers: int = 1, *, grace_s: float = 5.0, **launch: object) -> Outcome:
        script = write_script(self.folder, body)
        launches = [
            Launch(worker=worker, num_workers=num_workers, **launch)  # type: ignore[arg-type]
            for worker in range(num_workers)
        ]
        return run_local(
            [str(script), "an argument"],
            launches,
            self.folder,
            on_event=self.events.append,
            on_output=self.hear,
            grace_s=grace_s,
        )

    def hear(self, name: str, data: bytes) -> None:
        self.output[name] += data

    def log(self, worker: int) -> str:
        return "".join((self.folder / f"worker-{worker}.{end}").read_text() for end in ("log", "err"))


def write_script(folder: Path, body: str) -> Path:
    script = folder / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    return script


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], within_s: float = 10.0) -> bool:
    """Wait for processes that are not our children: a pidfd is readable once its process has ended."""
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([ended], [], [], within_s)
        os.close(ended)
    return not any(is_running(pid) for pid in pids)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_events_and_output_arrive_and_are_kept(runner: Runner) -> None:
    outcome = runner.run(
        """
        send(kind="joined", worker=launch.worker)
        print("out", launch.worker, sys.argv[1])
        print("err", launch.worker, file=sys.stderr)
        """,
        num_workers=2,
    )
    assert outcome == Outcome(exit_code=0)
    assert sorted(str(event["worker"]) for event in runner.events) == ["0", "1"]
    assert runner.output == {"stdout": b"out 0 an argument\n", "stderr": b"err 0\n"}
    assert sorted(runner.log(0).splitlines()) == ["err 0", "out 0 an argument"]
    assert sorted(runner.log(1).splitlines()) == ["err 1", "out 1 an argument"]
    kept = [json.loads(line) for line in (runner.folder / "events.jsonl").read_text().splitlines()]
    assert kept == runner.events


def test_much_output_and_an_unfinished_line_come_through(runner: Runner) -> None:
    assert runner.run("sys.stdout.write('x' * 3_000_000 + chr(10) + 'end')").ok
    assert runner.output["stdout"] == b"x" * 3_000_000 + b"\nend"


def test_the_level_and_the_launch_are_in_the_environment(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    names = ["ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "PYTHONUNBUFFERED"]
    assert runner.run(f"print([os.environ[name] for name in {names}])", determinism="D2", threads=3).ok
    assert runner.output["stdout"].decode().strip() == "['avx2', '3', 'lo', '1']"


def test_a_failure_ends_the_others_and_is_named(runner: Runner) -> None:
    outcome = runner.run("sys.exit(3) if launch.worker == 1 else block()", num_workers=3)
    assert (outcome.worker, outcome.exit_code, outcome.reason) == (1, 1, "worker 1 ended with exit code 3")


def test_an_error_event_gives_the_reason_and_the_exit_code(runner: Runner) -> None:
    outcome = runner.run(
        """
        if launch.worker == 0:
            block()
        send(kind="error", worker=1, type="UsageError", text="batch_size=0 must be positive", exit_code=2)
        sys.exit(2)
        """,
        num_workers=2,
    )
    assert (outcome.worker, outcome.exit_code, outcome.reason) == (1, 2, "batch_size=0 must be positive")


def test_the_culprit_is_named_though_its_peer_ends_first(runner: Runner) -> None:
    os.mkfifo(runner.folder / "pid")
    os.mkfifo(runner.folder / "watching")
    outcome = runner.run(
        """
        import select
        os.chdir(os.path.dirname(__file__))
        if launch.worker == 0:
            open("pid", "w").write(str(os.getpid()))
            open("watching").read()
            send(kind="error", worker=0, type="WorkerLost", text="worker 1 is gone", exit_code=1)
            sys.exit(1)
        peer = os.pidfd_open(int(open("pid").read()))
        open("watching", "w").close()
        select.select([peer], [], [])
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        num_workers=2,
    )
    assert (outcome.worker, outcome.exit_code) == (1, 1)
    assert "SIGKILL" in str(outcome.reason)


def test_a_worker_that_ignores_sigterm_is_killed(runner: Runner) -> None:
    os.mkfifo(runner.folder / "deaf")
    outcome = runner.run(
        """
        os.chdir(os.path.dirname(__file__))
        if launch.worker == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("deaf", "w").close()
            block()
        open("deaf").read()
        sys.exit(1)
        """,
        num_workers=2,
        grace_s=0.2,
    )
    assert outcome.worker == 1


def test_processes_that_a_worker_leaves_behind_end_with_it(runner: Runner) -> None:
    assert runner.run(
        """
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        send(kind="child", pid=child.pid)
        os._exit(0)
        """
    ).ok
    assert wait_until_gone([int(str(runner.events[0]["pid"]))])


def test_exits_are_seen_without_pidfds(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    outcome = runner.run("sys.exit(3) if launch.worker == 1 else block()", num_workers=2)
    assert (outcome.worker, outcome.reason) == (1, "worker 1 ended with exit code 3")


def test_a_listener_that_fails_leaves_no_worker(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail(event: Event) -> None:
        pids.append(int(str(event["pid"])))
        raise RuntimeError("listener")

    script = write_script(tmp_path, "send(pid=os.getpid())\nblock()")
    with pytest.raises(RuntimeError, match="listener"):
        run_local([str(script)], [Launch()], tmp_path, on_event=fail)
    assert not is_running(pids[0])


LAUNCHER = """
import sys
from pathlib import Path
from melodeon.backends.local import run_local
from melodeon.core.launch import Launch
outcome = run_local(sys.argv[1:2], [Launch(worker=k, num_workers=2) for k in range(2)], Path(sys.argv[2]),
                    on_event=lambda event: print(event["pid"], flush=True))
sys.exit(outcome.exit_code)
"""


def start_launcher(folder: Path, body: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A launcher of two workers in its own process, and the processes it has started."""
    script = write_script(folder, body)
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(script), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    return launcher, [int(launcher.stdout.readline()) for _ in range(4)]


WATCHED = """
from melodeon.runtime.lifeline import watch
watch(launch.lifeline_fd)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
send(pid=child.pid)
send(pid=os.getpid())
"""


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    launcher, pids = start_launcher(tmp_path, WATCHED + "block()")
    with launcher:
        assert all(is_running(pid) for pid in pids)
        launcher.kill()
    assert wait_until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_is_passed_on_and_ends_with_7(tmp_path: Path, number: signal.Signals) -> None:
    launcher, pids = start_launcher(tmp_path, WATCHED + "block()")
    with launcher:
        launcher.send_signal(number)
        assert launcher.wait(timeout=30) == 7
    assert wait_until_gone(pids)


def test_a_second_interrupt_kills_deaf_workers(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGINT, lambda *_: send(pid=0))\n"
    launcher, pids = start_launcher(tmp_path, deaf + WATCHED + "while True: block()")
    with launcher:
        assert launcher.stdout is not None
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout.readline() == "0\n"  # heard, and ignored
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.read()
        assert launcher.wait(timeout=4) == 7  # well before the grace would have ended
    assert wait_until_gone(pids)
