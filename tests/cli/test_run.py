"""`melodeon run` as a person runs it: a process, its output and its exit code. Scripts here use no torch."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from melodeon.backends.runs import Request
from melodeon.coord.master_state import JobConfig
from tests.cli.conftest import Melodeon, called
from tests.cli.fake_agent import job

SCRIPT = """
import json, os, sys
from melodeon.core.launch import Launch
launch = Launch.from_env(os.environ)
def send(**event):
    os.write(launch.event_fd, (json.dumps(event) + chr(10)).encode())
send(kind="joined", worker=launch.worker, virtual_workers=8, assignment="4,4", device="cpu", order="tree",
     determinism=launch.determinism)
print("args", sys.argv[1:])
if launch.worker == 0:
    send(kind="begin", step=0, total_steps=2, steps_per_epoch=2)
    send(kind="step", step=1, epoch=0, metrics={"loss": 0.25})
    send(kind="note", text="a note for the person")
    send(kind="end", step=2, digest="d1" * 32)
elif "--fail" in sys.argv:
    raise ValueError("worker one's own trouble")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    curves = {
        "three": {"3": {"1": 2.0}},
        "none": {"1": {"0": 2.0}},
        "back": {"1": {"1": -3.0}},
        "empty": {"1": {}},
        "bare": {},
    }
    for name, curve in curves.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(curve))
    return tmp_path


def test_what_follows_the_script_is_the_scripts(folder: Path) -> None:
    done = called(folder, "run", "--static", "--workers", "2", "train.py", "--workers", "5", "--", "--json", "-x")
    assert done.returncode == 0
    assert done.stdout == "args ['--workers', '5', '--', '--json', '-x']\n"


def test_progress_and_the_summary_go_to_stderr(folder: Path) -> None:
    done = called(folder, "run", "--static", "--name", "a", "train.py")
    assert "8 virtual workers as 4,4 on cpu, order tree, D1" in done.stderr
    assert "step 1/2 loss 0.25" in done.stderr
    assert "a note for the person" in done.stderr
    assert "done: 2 steps in" in done.stderr
    assert "d1" * 32 in done.stderr
    assert str(Path(".melodeon/runs/a")) in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_outlives_whoever_reads_what_it_says(folder: Path, terminal: bool, options: list[str]) -> None:
    """`2>&1 | head` has seen enough, or the terminal's window was closed."""
    reader, ours = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "melodeon", "run", "--static", "--name", "a", *options, "train.py"]
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=ours, stderr=ours, env=env, start_new_session=True
    ) as process:
        os.close(reader)
        os.close(ours)
        assert process.wait(60) == 0
    assert json.loads((folder / ".melodeon/runs/a/run.json").read_text())["status"] == "done"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_that_was_started_without_streams_trains(folder: Path, closed: str) -> None:
    command = [sys.executable, "-m", "melodeon", "run", "--static", "--name", "a", "train.py"]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], cwd=folder, timeout=60)
    assert done.returncode == 0
    assert json.loads((folder / ".melodeon/runs/a/run.json").read_text())["status"] == "done"


def test_one_step_is_one_step(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT.replace('kind="end", step=2', 'kind="end", step=1'))
    assert "done: 1 step in" in called(folder, "run", "--static", "train.py").stderr


def test_quiet_leaves_only_the_script(folder: Path) -> None:
    done = called(folder, "run", "--static", "--quiet", "train.py")
    assert (done.stdout, done.stderr) == ("args []\n", "")


def test_json_is_all_of_stdout(folder: Path) -> None:
    done = called(folder, "run", "--json", "--assignment", "3,5", "--runs-root", "elsewhere", "--name", "b", "train.py")
    result = json.loads(done.stdout)
    expected = {"id": "b", "status": "done", "exit_code": 0, "steps": 2, "digest": "d1" * 32, "num_workers": 2}
    assert result.items() >= expected.items()
    record = json.loads((folder / "elsewhere" / "b" / "run.json").read_text())
    assert record["command"][:3] == ["melodeon", "run", "--json"]


def test_a_script_that_does_not_train_is_told_what_to_do(folder: Path) -> None:
    (folder / "plain.py").write_text("print('hello')\n")
    done = called(folder, "run", "plain.py")
    assert done.returncode == 1
    assert done.stdout == "hello\n"
    assert "worker 0 ended before it trained: the script must call melodeon.join(...)" in done.stderr


def test_a_failed_worker_is_named_with_its_last_words(folder: Path) -> None:
    done = called(folder, "run", "--static", "--workers", "2", "train.py", "--fail")
    assert done.returncode == 1
    assert "[worker 1] ValueError: worker one's own trouble" in done.stderr
    assert "error: worker 1 ended with exit code 1: ValueError: worker one's own trouble (log: " in done.stderr


class Asked(Exception):
    """Instead of a run: what was asked for."""


@pytest.fixture
def asked(place: Path, melodeon: Melodeon, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobConfig]:
    """`melodeon run OPTIONS train.py`, as far as the job that it would start."""

    def perform(request: Request, **_: object) -> None:
        raise Asked(request)

    def ask(*options: str) -> JobConfig:
        with pytest.raises(Asked) as found:
            melodeon("run", *options, "train.py")
        job: JobConfig = found.value.args[0].elastic.job
        return job

    monkeypatch.setattr("melodeon.cli.run.perform", perform)
    (place / "train.py").touch()
    return ask


@pytest.mark.parametrize(
    ("args", "restarts", "factor", "patience"),
    [([], 3, 1.5, 10), (["--restarts", "7", "--straggler", "2.5", "--patience", "4"], 7, 2.5, 4)],
)
def test_when_workers_are_slow_or_replaced_is_a_choice(
    asked: Callable[..., JobConfig], args: list[str], restarts: int, factor: float, patience: int
) -> None:
    job = asked(*args)
    assert (job.restarts, job.straggler_factor, job.straggler_patience) == (restarts, factor, patience)


@pytest.mark.parametrize("options", [["64"], ["128", "--agents", "2"], ["65", "--listen", "127.0.0.1"]])
def test_as_many_workers_as_there_is_room_for_or_as_other_machines_may_take_are_started(
    asked: Callable[..., JobConfig], options: list[str]
) -> None:
    assert asked("--workers", *options).workers == int(options[0])


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["trian.py"], 4, "script 'trian.py' is not there: did you mean train.py?"),
        (["nowhere/x.py"], 4, "script 'nowhere/x.py' is not there: check the path"),
        (["."], 4, "'.' is a folder"),
        (["--assignment", "3,x", "train.py"], 2, "assignment '3,x' is not a list of whole numbers"),
        (["--assignment", "3,0", "train.py"], 2, "at least 1 virtual worker"),
        (["--assignment", "3,1", "--workers", "3", "train.py"], 2, "disagree (2 workers): give only one"),
        (["--workers", "0", "train.py"], 2, "--workers 0 cannot run anything"),
        (["--workers", "9" * 20, "train.py"], 2, f"--workers {'9' * 20} cannot be: it must be less than or equal to"),
        (["--agents", "9" * 20, "train.py"], 2, f"--agents {'9' * 20} cannot be: it must be less than or equal to"),
        (["--restarts", "9" * 20, "train.py"], 2, f"--restarts {'9' * 20} cannot be: it must be less than or equal to"),
        (["--workers", "65", "train.py"], 2, "--workers 65 find no room in 1 agent of 64 slots: start 64 at most, or"),
        (["--workers", "999", "--agents", "2", "train.py"], 2, "in 2 agents of 64 slots each: start 128 at most, or"),
        (["--order", "dpd", "train.py"], 2, "order 'dpd' is not one of tree, ddp: did you mean ddp?"),
        (["--determinism", "D9", "train.py"], 2, "determinism 'D9' is not one of D0, D1, D2"),
        (["--determinism", "", "train.py"], 2, "determinism '' is not one of D0, D1, D2"),  # "$LEVEL", and none was set
        (["--name", "a/b", "train.py"], 2, "plain folder name"),
        (["--name", "-x", "train.py"], 2, "run name '-x' is not a plain folder name"),  # `logs -x` would be an option
        (["--hybrid", "--static", "train.py"], 2, "--hybrid changes the batch when the job grows"),
        (["--curves", "x.json", "train.py"], 2, "it goes with --curves"),
        (["--curves", "", "train.py"], 2, "it goes with --curves"),
        (["--hybrid", "--curves", "train.py", "train.py"], 2, "holds no scaling curves"),
        (["--batch-history", "train.py", "train.py"], 2, "holds no batch history"),
        (["--batch-history", "three.json", "train.py"], 2, "holds no batch history: it looks like"),
        (["--hybrid", "--curves", "three.json", "train.py"], 2, "batch factor 3: batches are doubled, to 1, 2, 4, ..."),
        (["--hybrid", "--curves", "none.json", "train.py"], 2, "Expected `int` >= 1"),
        (["--hybrid", "--curves", "back.json", "train.py"], 2, "Expected `float` > 0.0"),
        (["--hybrid", "--curves", "empty.json", "train.py"], 2, "length >= 1"),
        (["--hybrid", "--curves", "bare.json", "train.py"], 2, "--curves bare.json holds no scaling curves"),
        (["--batch-history", ".", "train.py"], 4, "is no run's folder"),
        (["--straggler", "inf", "train.py"], 2, "a straggler factor of inf tells no slow worker from the others"),
        (["--straggler", "0.5", "train.py"], 2, "give 0, which watches nobody, or a number of at least 1"),
        (["--listen", "192.0.2.1", "train.py"], 2, "--listen 192.0.2.1 is no IPv4 address or name of this machine"),
        (["--store", "nonsense", "train.py"], 2, "'nonsense' names no store: give"),
        (["--store", "tcp:here:65536", "train.py"], 2, "'tcp:here:65536' is no address of an embedded store: give"),
        (["--store", "http://here:99999", "train.py"], 2, "'http://here:99999' is no address of etcd: give"),
    ],
)
def test_mistakes_get_one_sentence_and_their_exit_code(folder: Path, args: list[str], code: int, sentence: str) -> None:
    done = called(folder, "run", *args)
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (folder / ".melodeon").exists()


@pytest.mark.parametrize("fixed", [["--static"], ["--assignment", "3,3"], ["--record-ops"]], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--agents", "3"], "--agents 3"),
        (["--restarts", "2"], "--restarts 2"),
        (["--restarts", "3"], "--restarts 3"),  # also what it would be anyway
        (["--straggler=0"], "--straggler 0"),
        (["--patience", "4"], "--patience 4"),
        (["--store", "etcd://here:2379"], "--store etcd://here:2379"),
        (["--listen", "127.0.0.1"], "--listen 127.0.0.1"),
        (["--straggler", "3", "--agents", "2"], "--agents 2 and --straggler 3"),
    ],
    ids=str,
)
def test_what_only_agents_could_do_is_refused_where_there_are_none(
    place: Path, melodeon: Melodeon, fixed: list[str], options: list[str], said: str
) -> None:
    (place / "train.py").touch()
    fix = "leave that out, or --static, --assignment and --record-ops"
    sentence = f"error: a run without agents has no use for {said}: {fix}\n"
    assert melodeon("run", *fixed, *options, "train.py") == (2, "", sentence)
    assert not (place / ".melodeon").exists()


def test_a_name_under_which_a_job_runs_elsewhere_is_refused(place: Path, melodeon: Melodeon) -> None:
    (place / "train.py").touch()
    with job(place, "exp") as agent:
        code, _, err = melodeon("run", "--runs-root", "b", "--name", "exp", "train.py")
    assert (code, err) == (2, f"error: job 'exp' runs already in {agent.run_dir}: give another --name\n")
    assert not (place / "b").exists()


def test_a_missing_torch_is_said_before_anything_starts(folder: Path) -> None:
    hide = "import sys; sys.modules['torch'] = None; sys.argv = ['melodeon', 'run', 'train.py']; "
    done = subprocess.run(
        [sys.executable, "-c", hide + "from melodeon.cli.main import main; main()"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: training needs PyTorch, which is not installed here: pip install 'melodeon[train]'\n"
    assert not (folder / ".melodeon").exists()


@pytest.mark.parametrize(("lines", "read"), [(50_000, 1), (1, 0)])
def test_a_reader_that_leaves_does_not_end_the_run(folder: Path, lines: int, read: int) -> None:
    (folder / "chatty.py").write_text(f"for _ in range({lines}): print('line after line')\n")
    command = [sys.executable, "-m", "melodeon", "run", "--static", "--quiet", "chatty.py"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=buffered, **pipes) as process:
        assert process.stdout is not None
        for _ in range(read):
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
