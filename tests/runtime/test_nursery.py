"""Real nurseries: this test plays the agent, and the workers are real scripts."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from melodeon.coord.lines import Brood, Start
from melodeon.coord.marks import read_mark, started
from melodeon.coord.wire import Frames, pack
from melodeon.runtime.nursery import Nursery
from tests.coord.running import eventually, gone
from tests.runtime.zygotes import ENV, Forked, Zygote, zygote

PRELUDE = """
import os, signal, sys, time
"""


class Agent:
    """Listens as an agent would, and starts one nursery: itself, or by asking a zygote."""

    def __init__(self, folder: Path, zygote: Zygote | None) -> None:
        self.folder = folder
        self.address = str(folder / "agent.sock")
        self.lifeline, self.held = os.pipe()
        self.server = self.listen()
        self.process = self.begin() if zygote is None else self.sprout(zygote)
        self.call: socket.socket | None = None
        self.brood = Brood(pid=0)

    def begin(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "nursery.err").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "melodeon.runtime.nursery", self.address, "--lifeline", str(self.lifeline)],
                env=ENV,
                stdin=subprocess.DEVNULL,
                stderr=said,
                pass_fds=(self.lifeline,),
                start_new_session=True,
            )

    def sprout(self, zygote: Zygote) -> Forked:
        with (self.folder / "nursery.err").open("wb") as said:
            made = zygote.ask(self.folder, [said.fileno(), self.lifeline])
        assert made.pid, made.refused
        return Forked(made.pid)

    def listen(self) -> socket.socket:
        Path(self.address).unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.settimeout(60)
        server.bind(self.address)
        server.listen()
        return server

    def accept(self) -> Brood:
        self.call, _ = self.server.accept()
        self.call.settimeout(30)
        self.frames = Frames(Brood)
        return self.hear(lambda brood: True)

    def vanish(self) -> None:
        assert self.call is not None
        self.call.close()
        self.server.close()

    def hear(self, until: Callable[[Brood], bool]) -> Brood:
        assert self.call is not None
        while True:
            for brood in self.frames.feed(data := self.call.recv(1 << 16)):
                self.brood = brood
                if until(brood):
                    return brood
            assert data, "the nursery hung up"

    def start(
        self,
        worker: int,
        body: str,
        *args: str,
        module: str | None = None,
        log: str | None = None,
        mark: str | None = None,
        **env: str,
    ) -> None:
        assert self.call is not None
        script = self.folder / f"script{worker}.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        self.call.sendall(
            pack(
                Start(
                    worker=worker,
                    argv=("-m", module, *args) if module else (str(script), *args),
                    env=env,
                    out=str(self.folder / (log or f"worker-{worker}.log")),
                    err=str(self.folder / f"worker-{worker}.err"),
                    mark=str(self.folder / (mark or f"worker-{worker}.pid")),
                )
            )
        )

    def run(self, worker: int, body: str, *args: str, module: str | None = None, **env: str) -> tuple[int, str]:
        """Start a worker and wait for its end: its exit code and its output, stderr last."""
        self.start(worker, body, *args, module=module, **env)
        code = self.hear(lambda brood: worker in brood.ended).ended[worker]
        return code, "".join((self.folder / f"worker-{worker}.{end}").read_text() for end in ("log", "err"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.brood.workers.values():
            if started(pid):
                os.killpg(pid, signal.SIGKILL)
        self.server.close()
        if self.call is not None:
            self.call.close()
        for fd in (self.lifeline, self.held):
            if fd >= 0:
                os.close(fd)


@pytest.fixture(scope="module", params=["started", "forked of a zygote"])
def maker(request: pytest.FixtureRequest) -> Iterator[Zygote | None]:
    """The two ways in which a nursery comes to be: nobody can tell them apart."""
    if request.param == "started":
        yield None
    else:
        with zygote() as found:
            yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, maker: Zygote | None) -> Iterator[Agent]:
    """One nursery for the tests that do it no harm."""
    agent = Agent(tmp_path_factory.mktemp("n"), maker)
    agent.accept()
    yield agent
    agent.close()


@pytest.fixture
def agent(tmp_path: Path, maker: Zygote | None) -> Iterator[Agent]:
    agent = Agent(tmp_path, maker)
    agent.accept()
    yield agent
    agent.close()


def test_a_script_runs_as_the_interpreter_runs_it(shared: Agent) -> None:
    code, output = shared.run(
        1,
        """
        import json, pickle
        class Value: pass
        assert pickle.loads(pickle.dumps(Value())).__class__ is Value
        print(json.dumps([__name__, __file__, sys.argv, sys.path[0], os.environ["COLOUR"], os.getpid() == os.getpgrp(),
                          os.getsid(0) == os.getpid(), sys.stdin.read(), vars(sys.modules["__main__"]) is globals()]))
        """,
        "--flag",
        "two words",
        COLOUR="green",
    )
    script = str(shared.folder / "script1.py")
    expected = ["__main__", script, [script, "--flag", "two words"], str(shared.folder), "green", True, True, "", True]
    assert (code, json.loads(output)) == (0, expected)


def test_torch_is_there_already_and_nothing_was_spent_on_a_gpu(shared: Agent) -> None:
    code, output = shared.run(
        2,
        """
        assert {"torch", "torch._dynamo", "torch.optim", "torch.distributed"} <= set(sys.modules)
        assert "melodeon.runtime.join" in sys.modules
        import threading, torch
        print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")), [t.name for t in threading.enumerate()])
        """,
    )
    # Its own thread, and the one that watches the lifeline.
    assert (code, output) == (0, "False 2 ['MainThread', 'melodeon-lifeline']\n")
    assert len(list(Path(f"/proc/{shared.process.pid}/task").iterdir())) == 1


def test_a_module_runs_by_name(shared: Agent) -> None:
    value = shared.folder / "value.json"
    value.write_text('{"a": [1]}')
    for worker, file in ((3, str(value)), (4, "missing.json")):
        seen = shared.run(worker, "", "--compact", file, module="json.tool")
        plain = subprocess.run(
            [sys.executable, "-m", "json.tool", "--compact", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert seen == (plain.returncode, plain.stdout.decode())


ENDS = {
    "falls off the end": ("print('out', end='')", 0, "out"),
    "sys.exit()": ("sys.exit()", 0, ""),
    "sys.exit(7)": ("sys.exit(7)", 7, ""),
    "sys.exit(text)": ("sys.exit('no such thing')", 1, "no such thing\n"),
    "an error": ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
    "its own hook": ("sys.excepthook = lambda *a: print('mine', a[1])\nraise ValueError('wrong')", 1, "mine wrong\n"),
    "a hook that exits": ("sys.excepthook = lambda *a: sys.exit(5)\nraise ValueError('wrong')", 5, ""),
    "os._exit": ("os._exit(9)", 9, ""),
    "a signal": ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()", -2, "KeyboardInterrupt\n"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()", -15, ""),
    "exit handlers": ("import atexit\natexit.register(print, 'last')\nprint('first')\nsys.exit(3)", 3, "first\nlast\n"),
    "threads": ("import threading\nthreading.Timer(0.05, print, ['late']).start()\nprint('early')", 0, "early\nlate\n"),
    "no syntax": ("def (:", 1, "SyntaxError: invalid syntax\n"),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_like_the_interpreter(shared: Agent, name: str) -> None:
    body, code, text = ENDS[name]
    worker = 10 + list(ENDS).index(name)
    seen, output = shared.run(worker, body)
    plain = subprocess.run(
        [sys.executable, str(shared.folder / f"script{worker}.py")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert (seen, output.endswith(text)) == (code, True), output
    assert (seen, output) == (plain.returncode, plain.stdout.decode())  # tracebacks and all


def test_a_worker_that_cannot_be_made_says_why(shared: Agent) -> None:
    shared.start(39, "print('never')", log="missing/worker.log")
    assert shared.hear(lambda brood: 39 in brood.ended).ended[39] == 1
    assert "No such file or directory" in (shared.folder / "nursery.err").read_text()


def test_a_worker_for_which_there_is_no_room_is_lost_alone(shared: Agent) -> None:
    shared.start(37, "signal.pause()")
    pid = shared.hear(lambda brood: 37 in brood.workers).workers[37]
    shared.start(38, "print('never')", mark="missing/worker.pid")
    assert shared.hear(lambda brood: 38 in brood.ended).ended[38] == -9
    assert "worker 38 cannot be made: " in (shared.folder / "nursery.err").read_text()
    assert started(pid) is not None
    os.kill(pid, signal.SIGKILL)
    shared.hear(lambda brood: 37 in brood.ended)


def test_a_fork_that_fails_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no more processes")))
    near, far = socket.socketpair()
    with near, far:
        maker = Nursery("", None)
        maker._agent, maker._alive = near, {1: 2**22 - 1}
        paths = {name: str(tmp_path / name) for name in ("out", "err", "mark")}
        maker._start(Start(worker=2, argv=("never.py",), env={}, **paths))
        (brood,) = Frames(Brood).feed(far.recv(1 << 16))
        assert (brood.workers, brood.ended) == ({1: 2**22 - 1}, {2: -9})
        assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        maker._selector.close()
        os.close(maker._woken)
        os.close(maker._wake)


def test_a_start_said_twice_has_one_effect(shared: Agent) -> None:
    shared.start(40, "signal.pause()")
    first = shared.hear(lambda brood: 40 in brood.workers).workers[40]
    shared.start(40, "signal.pause()")
    assert shared.hear(lambda brood: True).workers[40] == first
    os.kill(first, signal.SIGKILL)
    assert shared.hear(lambda brood: 40 in brood.ended).ended[40] == -9


def test_what_a_worker_left_running_goes_with_it(shared: Agent) -> None:
    code, output = shared.run(
        41, "import subprocess\nprint(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']).pid)"
    )
    assert code == 0
    assert gone(int(output))


def test_a_worker_notes_who_it_is(shared: Agent) -> None:
    shared.start(42, "signal.pause()")
    pid = shared.hear(lambda brood: 42 in brood.workers).workers[42]
    mark = shared.folder / "worker-42.pid"
    assert eventually(lambda: read_mark(mark) == pid)
    os.kill(pid, signal.SIGKILL)
    shared.hear(lambda brood: 42 in brood.ended)
    assert read_mark(mark) is None


def test_a_fork_is_quicker_than_an_interpreter_that_imports_torch(shared: Agent) -> None:
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], env=ENV, check=True)
    fresh = time.monotonic() - begin
    took = []
    for worker in range(50, 60):
        begin = time.monotonic()
        shared.start(worker, "")
        shared.hear(lambda brood, worker=worker: worker in brood.ended)  # type: ignore[misc]
        took.append(time.monotonic() - begin)
    assert sorted(took)[len(took) // 2] < fresh / 2


def test_an_agent_that_comes_back_finds_its_workers(agent: Agent) -> None:
    agent.start(1, "signal.pause()")
    agent.start(2, "signal.pause()")
    pids = agent.hear(lambda brood: len(brood.workers) == 2).workers
    agent.vanish()
    os.kill(pids[2], signal.SIGKILL)
    agent.server = agent.listen()
    agent.accept()
    brood = agent.brood if 2 in agent.brood.ended else agent.hear(lambda brood: 2 in brood.ended)
    assert (brood.workers, brood.ended) == ({1: pids[1]}, {2: -9})


def test_workers_outlive_the_nursery(agent: Agent) -> None:
    agent.start(1, "signal.pause()")
    pid = agent.hear(lambda brood: 1 in brood.workers).workers[1]
    assert eventually(lambda: read_mark(agent.folder / "worker-1.pid") == pid)
    agent.process.kill()
    agent.process.wait()
    assert started(pid) is not None


def test_all_go_when_the_nursery_is_told_to(agent: Agent) -> None:
    agent.start(1, "signal.pause()")
    pid = agent.hear(lambda brood: 1 in brood.workers).workers[1]
    agent.process.terminate()
    assert agent.process.wait(20) in (0, None)
    assert gone(pid)


def test_all_go_when_the_launcher_is_gone(agent: Agent) -> None:
    agent.start(1, "signal.pause()")
    pid = agent.hear(lambda brood: 1 in brood.workers).workers[1]
    os.close(agent.held)
    agent.held = -1
    assert agent.process.wait(20) in (0, None)  # how it ended is told to its maker alone
    assert gone(pid)


def test_a_worker_goes_with_the_launcher_even_without_its_nursery(agent: Agent) -> None:
    agent.start(1, "signal.pause()")
    pid = agent.hear(lambda brood: 1 in brood.workers).workers[1]
    agent.process.kill()
    agent.process.wait()
    os.close(agent.held)
    agent.held = -1
    assert gone(pid)
