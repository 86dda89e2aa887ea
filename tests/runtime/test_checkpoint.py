import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import melodeon
from melodeon.core.definition import Definition
from melodeon.core.errors import CheckpointError, UsageError
from melodeon.core.launch import Launch
from melodeon.runtime.checkpoint import BackgroundWriter, CheckpointFolder, read_checkpoint
from melodeon.runtime.codec import clone_state
from melodeon.runtime.digest import digest_state
from melodeon.runtime.group import Group
from melodeon.runtime.journal import Journal
from melodeon.runtime.keeper import Keeper, Schedule

torch.set_num_threads(1)

DEFINITION = Definition({"seed": 0, "order": "tree", "threads": 1, "dropout": 0.1, "amp": None, "compile": False})


def make_state(step: int) -> dict[str, Any]:
    model = {"weight": torch.arange(30.0).reshape(5, 6) + step, "bias": torch.zeros(0), "n": torch.tensor(step)}
    optimizer = {
        "state": {0: {"exp_avg": torch.full((5, 6), 0.5, dtype=torch.bfloat16)}},
        "param_groups": [{"lr": 0.1}],
    }
    return {"models": {"0": model}, "optimizers": {"0": optimizer}, "step": step}


def fill(path: Path, *steps: int, keep: int = 3) -> CheckpointFolder:
    folder = CheckpointFolder(path, keep)
    for step in steps:
        folder.write(step, make_state(step), DEFINITION, {"epoch": step // 10})
    return folder


def newest_step(folder: CheckpointFolder) -> int | None:
    checkpoint, _ = folder.newest_good()
    if checkpoint is None:
        return None
    assert digest_state(checkpoint.state) == digest_state(make_state(checkpoint.step))
    return checkpoint.step


def run_python(code: str, *args: object) -> Any:
    """Run `code` in a process of its own and return the JSON it prints last."""
    root = Path(melodeon.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_everything_written_is_read_back(tmp_path: Path) -> None:
    path = fill(tmp_path / "a" / "b", 100).path / "step-0000000100.melodeon"
    checkpoint = CheckpointFolder(path.parent).read(path)
    assert (checkpoint.path, checkpoint.step, checkpoint.definition) == (path, 100, DEFINITION)
    assert checkpoint.meta == {"epoch": 10}
    assert digest_state(checkpoint.state) == digest_state(make_state(100))
    checkpoint.state["models"]["0"]["weight"] += 1  # memory of its own
    assert newest_step(CheckpointFolder(path.parent)) == 100


def test_the_newest_few_stay_and_later_ones_of_another_run_too(tmp_path: Path) -> None:
    folder = fill(tmp_path, 1, 2, 3, 4, 50, keep=2)
    assert folder.steps() == [4, 50]
    folder.write(5, make_state(5), DEFINITION, {})
    folder.write(6, make_state(6), DEFINITION, {})
    assert folder.steps() == [5, 6, 50]
    folder.write(50, make_state(50), DEFINITION, {})
    assert folder.steps() == [6, 50]
    assert CheckpointFolder(tmp_path / "absent").steps() == []
    assert CheckpointFolder(tmp_path / "absent").newest_good() == (None, [])


def test_every_flipped_byte_is_refused_and_the_one_before_used(tmp_path: Path) -> None:
    folder = fill(tmp_path, 1, 2)
    path = tmp_path / "step-0000000002.melodeon"
    good = path.read_bytes()
    words: set[str] = set()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        checkpoint, refused = folder.newest_good()
        assert checkpoint is not None
        assert checkpoint.step == 1, f"byte {position} flipped and not noticed"
        assert len(refused) == 1
        assert str(path) in refused[0]
        words.add(refused[0].split("refused: ")[1])
    assert "tensor models.0.weight is damaged (the digest differs)" in words
    assert "its header is damaged (the digest differs)" in words
    assert "it does not begin like a checkpoint" in words
    assert any("this Melodeon reads up to 1: upgrade Melodeon" in word for word in words)
    assert any("last digest" in word for word in words)


def test_every_truncation_and_extension_is_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path, 1, 2)
    path = tmp_path / "step-0000000002.melodeon"
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        checkpoint, refused = folder.newest_good()
        assert checkpoint is not None
        assert checkpoint.step == 1
        assert "truncated" in refused[0]
    path.write_bytes(good + b"\0")
    with pytest.raises(CheckpointError, match="something was added"):
        folder.read(path)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make", [Path.mkdir, make_pipe, make_link_to_itself, Path.touch], ids=["folder", "pipe", "link", "empty"]
)
def test_things_that_are_no_files_are_refused_without_hanging(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = fill(tmp_path, 1)
    make(tmp_path / "step-0000000009.melodeon")
    (tmp_path / "notes.txt").touch()
    checkpoint, refused = folder.newest_good()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert len(refused) == 1


def test_a_renamed_file_is_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path, 1, 2)
    (tmp_path / "step-0000000002.melodeon").rename(tmp_path / "step-0000000009.melodeon")
    checkpoint, refused = folder.newest_good()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert "holds step 2" in refused[0]


def test_a_missing_file_and_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(UsageError, match="keep=0"):
        CheckpointFolder(tmp_path, keep=0)
    with pytest.raises(UsageError, match="step=-1"):
        CheckpointFolder(tmp_path).write(-1, {}, DEFINITION)
    with pytest.raises(UsageError, match="meta or definition"):
        CheckpointFolder(tmp_path).write(1, {}, DEFINITION, {"x": float("nan")})
    with pytest.raises(UsageError, match="'a' is of type object"):
        CheckpointFolder(tmp_path).write(1, {"a": object()}, DEFINITION)
    assert list(tmp_path.iterdir()) == []


CRASHES = """
    import json, os, signal, sys
    from pathlib import Path
    from test_checkpoint import fill, newest_step, CheckpointFolder

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def crash_at(number, half):
        # Every system call that can change the folder, counted; the process dies at the one asked for.
        count = 0
        def wrap(name):
            real = getattr(os, name)
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == number:
                    if half and name == "write":
                        real(args[0], args[1][: len(args[1]) // 2])
                    die()
                return real(*args, **kwargs)
            setattr(os, name, call)
        for name in ("open", "write", "fsync", "replace", "unlink", "close", "mkdir"):
            wrap(name)

    outcomes = []
    for half in (False, True):
        number = 0
        while True:
            number += 1
            path = Path(sys.argv[1]) / f"{half}-{number}"
            fill(path, 1, 2, keep=2)
            child = os.fork()
            if child == 0:
                crash_at(number, half)
                fill(path, 3, keep=2)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            folder = CheckpointFolder(path, keep=2)
            found, refused = newest_step(folder), folder.newest_good()[1]
            fill(path, 4, keep=2)
            left = sorted(p.name for p in path.iterdir())
            outcomes.append([os.WIFSIGNALED(status), found, refused, left])
            if not os.WIFSIGNALED(status):
                break
    print(json.dumps(outcomes))
"""


def test_a_kill_at_any_system_call_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    outcomes = run_python(CRASHES, tmp_path)
    killed = [outcome for outcome in outcomes if outcome[0]]
    assert len(killed) >= 2 * 10, "too few points were tried to mean anything"
    assert {found for _, found, _, _ in outcomes} == {2, 3}
    for _, found, refused, left in outcomes:
        assert refused == [], "a half-written file must never carry a checkpoint's name"
        # the next write goes through and leaves neither temporary files nor more than it keeps
        assert left == [f"step-{step:010d}.melodeon" for step in (found, 4)]


def test_old_ones_go_only_after_the_new_one_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 1, 2, keep=2)
    calls: list[str] = []

    def record(name: str, describe: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(describe(*args))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    record("fsync", lambda descriptor: "sync folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "sync file")
    record("replace", lambda source, target: "rename")
    record("unlink", lambda path: f"remove {Path(path).name}")
    fill(tmp_path, 3, keep=2)
    assert calls == ["sync file", "rename", "sync folder", "remove step-0000000001.melodeon"]


def test_a_living_writers_temporary_file_is_left_alone(tmp_path: Path) -> None:
    folder = fill(tmp_path, 1)
    leftover = tmp_path / ".step-0000000002-00000000.melodeon.tmp"
    leftover.touch()
    living = tmp_path / ".step-0000000002-11111111.melodeon.tmp"
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(living)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        folder.write(3, make_state(3), DEFINITION)
        assert living.exists()
        assert not leftover.exists()
        process.communicate()
    folder.write(4, make_state(4), DEFINITION)
    assert not living.exists()


def test_a_folder_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file: give the path of a folder"):
        fill(tmp_path / "file", 1)
    with pytest.raises(CheckpointError, match="Not a directory"):
        CheckpointFolder(tmp_path / "file").newest_good()
    with pytest.raises(CheckpointError, match=r"cannot be written \(Not a directory\)"):
        fill(tmp_path / "file" / "below", 1)


LIMITED = """
    import json, os, resource, sys
    from pathlib import Path
    from test_checkpoint import fill, CheckpointError

    os.chdir(sys.argv[1])
    fill(Path("."), 1)
    if sys.argv[2] == "room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    else:
        Path(".").chmod(0o555)
        if os.getuid() == 0:  # permissions don't hold root back
            os.setgid(65534)
            os.setuid(65534)
    try:
        fill(Path("."), 2)
        print(json.dumps("nothing was raised"))
    except CheckpointError as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.parametrize(("case", "reason"), [("room", "File too large"), ("permission", "Permission denied")])
def test_a_failed_write_says_why_and_leaves_nothing_behind(tmp_path: Path, case: str, reason: str) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    try:
        sentence = run_python(LIMITED, path, case)
    finally:
        path.chmod(0o755)
    assert sentence == (
        f"checkpoint step-0000000002.melodeon cannot be written ({reason}): "
        "make room or choose a folder that can be written to"
    )
    assert [file.name for file in path.iterdir()] == ["step-0000000001.melodeon"]
    assert newest_step(CheckpointFolder(path)) == 1


def test_background_writes_are_in_order_and_training_goes_on(tmp_path: Path) -> None:
    writer = BackgroundWriter(CheckpointFolder(tmp_path, keep=10))
    assert writer.wait() is None
    state = make_state(0)
    for step in range(1, 6):
        state["models"]["0"]["weight"] += 1
        state["models"]["0"]["n"] += 1
        state["step"] = step
        writer.write(step, clone_state(state), DEFINITION, {})
    assert writer.wait() == tmp_path / "step-0000000005.melodeon"
    writer.close()
    for step in writer.folder.steps():
        found = read_checkpoint(tmp_path / f"step-{step:010d}.melodeon")
        assert digest_state(found.state) == digest_state(make_state(step))
    assert writer.folder.steps() == [1, 2, 3, 4, 5]


def test_background_errors_surface_once_on_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = BackgroundWriter(CheckpointFolder(tmp_path / "file"))
    writer.write(1, {}, DEFINITION)
    with pytest.raises(CheckpointError, match="is a file"):
        writer.write(2, {}, DEFINITION)
    assert writer.wait() is None
    writer.write(3, {}, DEFINITION)
    with pytest.raises(CheckpointError, match="is a file"):
        writer.close()


def test_at_most_one_write_is_in_flight(tmp_path: Path) -> None:
    class Slow(CheckpointFolder):
        def write(self, step: int, *args: Any) -> Path:
            started.set()
            assert release.wait(30)
            return super().write(step, *args)

    started, release = threading.Event(), threading.Event()
    writer = BackgroundWriter(Slow(tmp_path))
    writer.write(1, make_state(1), DEFINITION)
    assert started.wait(30)
    second = threading.Thread(target=writer.write, args=(2, make_state(2), DEFINITION))
    second.start()
    second.join(0.05)
    assert second.is_alive(), "the second write must wait for the first"
    release.set()
    second.join(30)
    writer.close()
    assert writer.folder.steps() == [1, 2]


def test_checkpoints_stay_in_their_folder_when_the_script_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = Journal(Launch(run_dir="run"))
    keeper = Keeper(Group(0, 1), journal, Schedule(receipt_every=None, every_step=False), lambda: make_state(7))
    keeper.keep("kept", 1, 3, strict=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    keeper.store_now(7, {})
    keeper.wait()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step-0000000007.melodeon"]
    found = keeper.find()
    assert found is not None
    assert found.path == tmp_path / "kept" / "step-0000000007.melodeon"
    monkeypatch.chdir(tmp_path)
    assert (again := keeper.find()) is not None
    assert again.path == Path("kept/step-0000000007.melodeon")  # as sentences have it


def test_no_snapshot_is_taken_while_the_one_before_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, taken = CheckpointFolder.write, threading.Semaphore(0)
    started, release = threading.Event(), threading.Event()

    def slow(folder: CheckpointFolder, *args: Any) -> Path:
        started.set()
        assert release.wait(30)
        return write(folder, *args)

    def counted(state: object) -> Any:
        taken.release()
        return clone_state(state)

    monkeypatch.setattr(CheckpointFolder, "write", slow)
    monkeypatch.setattr("melodeon.runtime.keeper.clone_state", counted)
    schedule = Schedule(receipt_every=None, every_step=False)
    keeper = Keeper(Group(0, 1), Journal(Launch(run_dir=str(tmp_path / "run"))), schedule, lambda: make_state(1))
    keeper.keep(tmp_path / "kept", 1, 3, strict=True)
    keeper.store_now(1, {})
    assert started.wait(30)
    assert taken.acquire(timeout=30)
    second = threading.Thread(target=keeper.store_now, args=(2, {}))
    second.start()
    assert not taken.acquire(timeout=0.05), "two snapshots would be in memory at once"
    release.set()
    assert taken.acquire(timeout=30)
    second.join(30)
    keeper.wait()
    assert CheckpointFolder(tmp_path / "kept").steps() == [1, 2]
