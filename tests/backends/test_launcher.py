"""The launcher's own business: limits, users, what workers are told."""

import contextlib
import errno
import os
import pwd
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from melodeon.backends.devices import SlotMap
from melodeon.backends.fleet_folder import ended_of, read_order, write_order
from melodeon.backends.fleet_values import LaunchOrder
from melodeon.backends.launcher import capacity_of, job_config, launch_of, main
from melodeon.backends.local import OnEvent
from melodeon.backends.outcome import Outcome
from melodeon.coord import limits
from melodeon.core.errors import MelodeonError, UsageError
from tests.backends.fleets import order, scripted, training

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run jobs as another user")
LIMITS = """
    import resource
    from melodeon.coord import limits
    limits.apply(memory=1 << 32, cuda={cuda})
    for name in ("CORE", "AS", "DATA"):
        print(resource.getrlimit(getattr(resource, f"RLIMIT_{{name}}"))[0], end=" ")
"""


@pytest.mark.parametrize(("cuda", "expected"), [(False, f"0 {1 << 32} {{}} "), (True, f"0 {{}} {1 << 32} ")])
def test_limits(cuda: bool, expected: str) -> None:
    code = textwrap.dedent(LIMITS.format(cuda=cuda))
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert text == expected.format(resource.getrlimit(resource.RLIMIT_DATA if not cuda else resource.RLIMIT_AS)[0])


@pytest.mark.parametrize("nice", [0, 9])
def test_jobs_stand_back_behind_the_service(nice: int) -> None:
    code = "import os; from melodeon.coord import limits; limits.apply(); print(os.nice(0))"
    command = ["nice", "-n", str(nice), sys.executable, "-c", code]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(text) == min(19, max(limits.BEHIND, os.getpriority(os.PRIO_PROCESS, 0) + nice))


def test_an_order_is_for_its_owners_eyes_only(tmp_path: Path) -> None:
    wanted = scripted(tmp_path)
    path = write_order(wanted)
    assert path == tmp_path / "job-1" / "launch-1.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_order(path) == wanted


@pytest.mark.parametrize("text", [None, "{", '{"job": 3}'])
def test_an_order_that_is_none(tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "launch-1.json"
    if text is not None:
        path.write_text(text)
    assert main(["launcher", str(path)]) == UsageError.exit_code
    assert str(path) in capsys.readouterr().err
    assert main(["launcher"]) == UsageError.exit_code


def test_what_workers_and_master_are_told(tmp_path: Path) -> None:
    wanted = order(tmp_path, "train.py", steps=9, order="ddp", threads=2, slots={"a": (1,), "b": (0,)}, capacity={})
    assert capacity_of(wanted) == {"a": 2, "b": 1}
    launch = launch_of(wanted, pin=False)
    assert (launch.max_steps, launch.order, launch.threads, launch.determinism) == (9, "ddp", 2, "D1")
    assert (launch.checkpoint_dir, launch.elastic) == (str(tmp_path / "job-1" / "checkpoints"), True)
    config = job_config(wanted, SlotMap(capacity_of(wanted), {}).to_agent(wanted.slots))
    assert (config.job, config.workers, config.straggler_factor) == ("job-1.1", 2, 0.0)
    assert config.slots == {"node0": [1, 2]}


def test_all_that_a_job_may_say_reaches_its_workers(tmp_path: Path) -> None:
    fields = {"virtual_workers": 8, "epochs": 3, "until": "loss < 0.1", "checkpoint_every": 5}
    launch = launch_of(order(tmp_path, "train.py", **fields), pin=True)
    assert (launch.virtual_workers, launch.max_epochs, launch.until) == (8, 3, "loss < 0.1")
    assert (launch.checkpoint_every, launch.pin) == (5, True)


WITHOUT_TORCH = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "torch" else found(name, *package)
from melodeon.backends.launcher import main
sys.exit(main(["launcher", sys.argv[1]]))
"""


def test_a_job_that_needs_torch_where_there_is_none(tmp_path: Path) -> None:
    path = write_order(training(tmp_path))
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(path)], capture_output=True, text=True)
    ended = ended_of(tmp_path / "job-1" / "job-1.1")
    assert (done.returncode, ended.status, ended.exit_code) == (2, "failed", 2), done.stderr
    assert ended.reason == "training needs PyTorch, which is not installed here: pip install 'melodeon[train]'"


@pytest.mark.parametrize("memory", [1, 4 << 20])
def test_a_limit_of_memory_that_lets_nothing_begin_is_named(tmp_path: Path, memory: int) -> None:
    path = write_order(scripted(tmp_path, memory=memory))
    done = subprocess.run(
        [sys.executable, "-m", "melodeon.backends.launcher", str(path)], capture_output=True, text=True
    )
    ended = ended_of(tmp_path / "job-1" / "job-1.1")
    assert (done.returncode, ended.status) == (1, "failed"), done.stderr
    assert ended.reason.startswith("the launcher failed: "), ended.reason
    assert ended.reason.endswith(
        f" (each of its processes may have {limits.in_words(memory)}: raise the job's field memory)"
    )


SENTENCE = "(each of its processes may have 512 MiB: {} the job's field memory)"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ImportError("x.so: failed to map segment from shared object"), "raise"),
        (RuntimeError("can't start new thread"), "raise"),
        (MemoryError(), "raise"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "raise"),
        (MelodeonError("worker 0 failed: RuntimeError: DefaultCPUAllocator: can't allocate memory"), "raise"),
        (MelodeonError("the process ended by signal 6:   what():  std::bad_alloc"), "raise"),
        (MelodeonError("worker 0 was killed (SIGKILL), perhaps because the machine ran out of memory"), "see"),
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT)), None),
    ],
)
def test_the_limit_is_named_where_it_was_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, fix: str | None
) -> None:
    def perform(*_: object) -> None:
        raise error

    monkeypatch.setattr("melodeon.backends.launcher._perform", perform)
    for memory, named in ((512 << 20, fix), (None, None)):
        folder = tmp_path / f"memory-{memory}"
        folder.mkdir()
        path = write_order(scripted(folder, memory=memory))
        with contextlib.suppress(ImportError, RuntimeError):  # their tracebacks are for launcher.log
            main(["launcher", str(path)])
        reason = ended_of(folder / "job-1" / "job-1.1").reason
        assert (str(error) or type(error).__name__) in reason
        assert ("(each of its" in reason, reason.endswith(SENTENCE.format(named))) == (named is not None,) * 2, reason


@pytest.mark.parametrize("said", ["RuntimeError: can't start new thread", "ValueError: no"])
def test_a_worker_that_dies_early_is_heard_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def perform(order: LaunchOrder, run_dir: Path, *_: object) -> Outcome:
        (run_dir / "worker-2.err").write_text("Traceback\n" * 1000 + f"{said}\n\n")
        return Outcome(exit_code=1, worker=2, reason="worker 2 ended with exit code 1")

    monkeypatch.setattr("melodeon.backends.launcher._perform", perform)
    main(["launcher", str(write_order(scripted(tmp_path, memory=512 << 20)))])
    fix = f" {SENTENCE.format('raise')}" if "thread" in said else ""
    assert ended_of(tmp_path / "job-1" / "job-1.1").reason == f"worker 2 ended with exit code 1: {said}{fix}"


@pytest.mark.parametrize("reached", ["loss < 0.3", None])
def test_a_target_that_was_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: str | None
) -> None:
    def run_elastic(*_: object, on_event: OnEvent, **__: object) -> Outcome:
        on_event({"kind": "end", "step": 99, "digest": "ab", **({"reached": reached} if reached else {})})
        return Outcome(exit_code=0)

    monkeypatch.chdir(tmp_path)  # the launcher goes to the job's folder, and this process must come back
    monkeypatch.setattr("melodeon.backends.launcher.run_elastic", run_elastic)
    monkeypatch.setattr("melodeon.backends.launcher.limits.apply", lambda **_: None)  # they are for good
    main(["launcher", str(write_order(scripted(tmp_path)))])
    ended = ended_of(tmp_path / "job-1" / "job-1.1")
    said = "" if reached is None else "loss < 0.3 was reached"
    assert (ended.status, ended.step, ended.reason) == ("done", 99, said)


def test_how_a_run_ended(tmp_path: Path) -> None:
    assert ended_of(tmp_path).status == "lost"
    (tmp_path / "run.json").write_text('{"status": "running"}')
    (tmp_path / "launcher.log").write_text("Killed\n")
    assert ended_of(tmp_path).reason == "its launcher: Killed"
    for text in ("{", '{"status": 3}', '{"status": "other"}', "[]"):
        (tmp_path / "run.json").write_text(text)
        assert ended_of(tmp_path).status == "lost"
    (tmp_path / "run.json").write_text('{"status": "failed", "exit_code": 2, "reason": "no", "steps": 3, "more": 1}')
    ended = ended_of(tmp_path)
    assert (ended.status, ended.exit_code, ended.reason, ended.step) == ("failed", 2, "no", 3)
    (tmp_path / "run.json").write_text('{"status": "failed", "reason": "\\u001b[2J' + "x" * 9999 + '"}')
    assert ended_of(tmp_path).reason == "\ufffd[2J" + "x" * 1996


BECOME = """
    import os
    from melodeon.coord import limits
    limits.become(limits.find_user("nobody"))
    print(os.getresuid(), os.getresgid(), os.environ["USER"], os.environ.get("XDG_RUNTIME_DIR"))
    try:
        os.setuid(0)
    except PermissionError:
        print("no way back")
"""


@as_root
def test_becoming_another_user() -> None:
    nobody = pwd.getpwnam("nobody")
    code = textwrap.dedent(BECOME)
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    uid, gid = nobody.pw_uid, nobody.pw_gid
    assert text == f"{(uid, uid, uid)} {(gid, gid, gid)} nobody None\nno way back\n"


@as_root
def test_a_job_runs_as_another_user() -> None:
    """Whatever becomes of it: it is that user's, and only its own folders are."""
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "who.py"
        script.write_text("import os; print(os.getuid())")
        path = write_order(order(folder, str(script), run_as="nobody", preload=("json",)))
        launcher = [sys.executable, "-m", "melodeon.backends.launcher", str(path)]
        subprocess.run(launcher, capture_output=True, check=False)
        names = ("job-1.1", "job-1.1/run.json", "checkpoints", "launch-1.json", ".")
        owners = [(path.parent / name).stat().st_uid for name in names]
        assert owners == [nobody.pw_uid, nobody.pw_uid, nobody.pw_uid, 0, 0]
        run_dir = path.parent / "job-1.1"
        assert ended_of(run_dir).status == "failed"  # it trains nothing, or its user may not read our interpreter
        if (run_dir / "worker-0.log").exists():
            assert (run_dir / "worker-0.log").read_text() == f"{nobody.pw_uid}\n"
