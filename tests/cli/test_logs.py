import json
import os
import pty
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from melodeon.cli.follow import Tail
from melodeon.cli.logs import harmless
from tests.cli.conftest import Melodeon
from tests.cli.fake_agent import job

COMMAND = [sys.executable, "-m", "melodeon", "logs"]


def ended(place: Path, name: str, **logs: str) -> Path:
    run = place / ".melodeon/runs" / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"created": name, "status": "done"}))
    for worker, text in logs.items():
        (run / f"worker-{worker.removeprefix('w')}.log").write_text(text)
    return run


def test_one_worker_is_printed_as_it_is_and_several_are_marked(place: Path, melodeon: Melodeon) -> None:
    ended(place, "a", w0="one\ntwo")
    assert melodeon("logs", "a") == (0, "one\ntwo\n", "")
    ended(place, "b", w0="one\n", w10="ten\n", w2="two\n")
    assert melodeon("logs") == (0, "[worker 0] one\n[worker 2] two\n[worker 10] ten\n", "")
    assert melodeon("logs", "last") == melodeon("logs"), "the newest, also where it has ended"
    assert melodeon("logs", "b", "--worker", "10")[1] == "ten\n"
    assert json.loads(melodeon("logs", "a", "-o", "json", "--tail", "1")[1]) == {
        "worker": 0,
        "stream": "stdout",
        "line": "two",
    }


def test_both_streams_are_found_and_told_apart(place: Path, melodeon: Melodeon) -> None:
    run = ended(place, "a", w0="zero\n")
    (run / "worker-0.err").write_text("oh\n")
    assert melodeon("logs")[1] == "zero\noh\n"
    said = [json.loads(line) for line in melodeon("logs", "-o", "json")[1].splitlines()]
    assert [(line["stream"], line["line"]) for line in said] == [("stdout", "zero"), ("stderr", "oh")]


def test_tail_keeps_the_last_lines_of_each(place: Path, melodeon: Melodeon) -> None:
    ended(place, "a", w0="1\n2\n3\n", w1="4\n")
    assert melodeon("logs", "--tail", "2")[1] == "[worker 0] 2\n[worker 0] 3\n[worker 1] 4\n"
    assert melodeon("logs", "--tail", "0") == (0, "", "")
    assert melodeon("logs", "--tail", "9" * 23) == melodeon("logs"), "all there are"


def test_mistakes(place: Path, melodeon: Melodeon) -> None:
    assert melodeon("logs")[0] == 4
    ended(place, "a1", w0="x\n")
    ended(place, "a2", w0="x\n")
    for args, code, sentence in [
        (["a"], 4, "could be any of a1, a2"),
        (["b"], 4, "'b' is no run under .melodeon/runs, and job 'b' is not there"),
        (["a1", "--worker", "7"], 4, "run a1 has no log of worker 7: it has logs of workers 0"),
        (["a1", "--worker", "x"], 2, "--worker 'x' is no worker"),
        (["a1", "--worker", ""], 2, "--worker '' is no worker"),
        (["a1", "--worker", "9" * 5000], 2, "is no worker"),
        (["a1", "--tail", "-1"], 2, "--tail -1 is no number of lines"),
    ]:
        found, _, err = melodeon("logs", *args)
        assert (found, sentence in err, err.count("\n")) == (code, True, 1), err


def test_a_whole_id_of_an_ended_run_counts_before_the_beginning_of_a_running_job(
    place: Path, melodeon: Melodeon
) -> None:
    run = ended(place, "exp1", w0="mine\n")
    with job(place, "exp10") as agent:
        (agent.run_dir / "worker-0.log").write_text("another's\n")
        for name, said in (("exp1", "mine\n"), (run, "mine\n"), ("exp10", "another's\n"), ("exp", "another's\n")):
            assert melodeon("logs", name) == (0, said, "")
        assert melodeon("logs", agent.run_dir) == (0, "another's\n", "")


def test_what_a_terminal_would_obey_is_taken_out() -> None:
    assert harmless("\x1b[31mred\x1b[0m \x1b]0;title\x07end\tx\x07\x9b2J\u202e") == "red end x\ufffd\ufffd2J\ufffd"


def test_a_terminal_is_protected_and_a_file_is_not(place: Path) -> None:
    ended(place, "a", w0="\x1b[2Jcleared\n")
    ours, theirs = pty.openpty()
    subprocess.run(COMMAND, stdout=theirs, check=True)
    assert os.read(ours, 1000) == b"cleared\r\n"
    os.close(ours)
    os.close(theirs)
    assert subprocess.run(COMMAND, stdout=subprocess.PIPE, check=True).stdout == b"\x1b[2Jcleared\n"


def test_follow_sees_later_lines_and_later_workers_until_the_end(place: Path) -> None:
    with job(place, "live") as agent:
        (agent.run_dir / "worker-0.log").write_text("old\nfirst\n")
        with subprocess.Popen([*COMMAND, "-f", "--tail", "1"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "[worker 0] first\n"
            (agent.run_dir / "worker-3.log").write_text("a\nb\nunended")
            assert [process.stdout.readline() for _ in range(2)] == ["[worker 3] a\n", "[worker 3] b\n"]
            (agent.run_dir / "run.json").write_text('{"status": "done"}')
            assert process.stdout.read() == "[worker 3] unended\n"
            assert process.wait(10) == 0


def test_follow_ends_with_the_launcher_however_that_went(place: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher,
        job(place, "live", pid=launcher.pid) as agent,
    ):
        (agent.run_dir / "worker-0.log").write_text("line\n")
        with subprocess.Popen([*COMMAND, "-f"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"[worker 0] line\n"
            launcher.kill()
            assert process.wait(10) == 0


def test_follow_ends_at_once_where_the_launcher_was_killed_before(place: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = ended(place, "lost", w0="line\n")
    for record in ({"pid": gone.pid}, {"pid": os.getpid(), "pid_started": 1}):  # now it is another process
        (run / "run.json").write_text(json.dumps({"status": "running", **record}))
        done = subprocess.run([*COMMAND, "-f", "lost"], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (0, "[worker 0] line\n")


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_a_launchers_number_that_no_process_can_have_is_nobodys(
    place: Path, melodeon: Melodeon, options: list[str]
) -> None:
    run = ended(place, "damaged", w0="line\n")
    (run / "run.json").write_text(json.dumps({"status": "running", "pid": 2**32}))
    mark = "[worker 0] " if options else ""
    assert melodeon("logs", "damaged", *options) == (0, f"{mark}line\n", "")


def test_a_reader_that_leaves_ends_it_quietly(place: Path) -> None:
    ended(place, "a", w0="line after line\n" * 50_000)
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_where_stdout_was_closed_nothing_is_printed(place: Path) -> None:
    ended(place, "a", w0="one\n")
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *COMMAND], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tail_never_hands_on_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == []
    with path.open("ab", buffering=0) as file:
        seen: list[bytes] = []
        for piece in (b"ab", b"c\nd", b"\r\n10%\r20%\r", b"end"):
            file.write(piece)
            seen += tail.read()
    assert seen == [b"abc", b"d", b"10%", b"20%"]
    assert tail.read(last=True) == [b"end"]


def test_a_log_of_any_length_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    lines = [b"%d" % number for number in range(1000)]
    path.write_bytes(b"\r\n".join(lines))
    for size in (1, 7, 1 << 20):
        monkeypatch.setattr("melodeon.cli.follow.PIECE_BYTES", size)
        assert Tail(path).read(last=True) == lines
        assert Tail(path, keep=3).read(last=True) == lines[-3:]
    monkeypatch.setattr("melodeon.cli.follow.PIECE_BYTES", 1 << 10)
    path.write_bytes(b"line\n" * 1_000_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in Tail(path).lines()) == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
