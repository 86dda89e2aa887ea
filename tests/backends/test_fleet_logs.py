"""A job's output in pieces."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.backends.fleet_folder import Owner, take
from melodeon.backends.fleet_logs import read_logs
from melodeon.coord.marks import started, write_mark
from melodeon.core.errors import UsageError
from melodeon.core.service import LogChunk


class Job:
    """The folders of a job, without the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cnn-7"
        self.folder.mkdir()

    def run(self, incarnation: int, *, alive: bool = False) -> Path:
        run_dir = self.folder / f"cnn-7.{incarnation}"
        take(run_dir, Owner(pid=os.getpid(), started=(started(os.getpid()) or 0) + (not alive)))
        (run_dir / "agents" / "node0").mkdir(parents=True)
        return run_dir

    def read(self, start: str = "", worker: int | None = None, limit: int = 65536) -> LogChunk:
        return read_logs(self.folder, start, worker, limit)

    def all(self, worker: int | None = None, limit: int = 65536) -> str:
        text, start = "", ""
        for _ in range(1000):
            chunk = self.read(start, worker, limit)
            text, start = text + chunk.text, chunk.next
            if chunk.over:
                return text
        raise AssertionError(f"there is no end, at {start}")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_nothing_yet(job: Job) -> None:
    chunk = job.read()
    assert (chunk.text, chunk.over) == ("", False)
    job.run(1, alive=True)
    assert job.read(chunk.next).text == ""


def test_incarnations_follow_each_other_and_workers_are_named(job: Job) -> None:
    first, second = job.run(1), job.run(2)
    (first / "worker-0.log").write_text("one\ntwo\n")
    (first / "worker-10.log").write_text("ten\n")
    (first / "worker-2.err").write_text("careful\n")
    (second / "worker-0.log").write_text("again")
    assert job.all() == (
        "[worker 0] one\n[worker 0] two\n[worker 2] careful\n[worker 10] ten\n--- start 2 ---\n[worker 0] again\n"
    )
    assert job.all(worker=0) == "one\ntwo\n--- start 2 ---\nagain\n"
    assert job.read().next == "2~0~"


def test_a_running_job_is_followed_line_by_line(job: Job) -> None:
    run = job.run(1, alive=True)
    log = run / "worker-0.log"
    write_mark(run / "agents" / "node0" / "worker-0.pid")
    log.write_bytes("gr\u00fc\u00dfe\nhal".encode() + b"b\xc3")
    chunk = job.read()
    assert (chunk.text, chunk.over) == ("[worker 0] gr\u00fc\u00dfe\n", False)
    assert job.read(chunk.next).text == ""
    with log.open("ab") as file:
        file.write(b"\xa4r\n50%\r")
    chunk = job.read(chunk.next)
    assert chunk.text == "[worker 0] halb\u00e4r\n[worker 0] 50%\n"
    with log.open("ab") as file:
        file.write(b"\nend")
    chunk = job.read(chunk.next)
    assert chunk.text == ""
    # The worker has ended: its last line will not get an end.
    (run / "agents" / "node0" / "worker-0.pid").unlink()
    chunk = job.read(chunk.next)
    assert (chunk.text, chunk.next, chunk.over) == ("[worker 0] end\n", "1~0~", False)


def test_output_is_harmless(job: Job) -> None:
    run = job.run(1)
    (run / "worker-0.log").write_bytes(b"\x1b[2J\x1b]0;owned\x07red\x1b[31m\xff\xfe\n\x00\x08\n")
    assert job.all(0) == "red\ufffd\ufffd\n\ufffd\ufffd\n"


def test_a_mark_stays_short(job: Job) -> None:
    run = job.run(1, alive=True)
    for worker in range(300):
        (run / f"worker-{worker}.log").write_text("x\n")
    write_mark(run / "agents" / "node0" / "worker-7.pid")
    chunk = job.read()
    assert chunk.text.count("\n") == 300
    assert chunk.next == "1~0-6_8-299~7.2.0"


def test_links_and_pipes_lead_nowhere(job: Job, tmp_path: Path) -> None:
    run = job.run(1)
    (tmp_path / "secret").write_text("token\n")
    (run / "worker-0.log").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "worker-1.log")
    (run / "worker-x.log").write_text("no number\n")
    assert job.all() == ""


@pytest.mark.parametrize("mark", ["x", "1", "1~~~", "1~a~", "1~~0.1", "../1~~", "1~~0.-1.0", "9" * 20 + "~~"])
def test_a_mark_that_is_none_is_refused(job: Job, mark: str) -> None:
    with pytest.raises(UsageError, match="is no mark of a log"):
        job.read(mark)


def test_a_mark_of_a_file_that_is_gone(job: Job) -> None:
    job.run(1)
    chunk = job.read("1~~5.100.100")
    assert (chunk.text, chunk.over) == ("", True)
    assert job.read("99~~").text == ""


@settings(max_examples=30)
@given(lines=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=60), long=st.integers(0, 4000))
def test_any_cut_gives_the_same_text(lines: list[str], long: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    job = Job(tmp_path_factory.mktemp("logs"))
    run = job.run(1)
    (run / "worker-0.log").write_bytes("\n".join([*lines, "\u20ac" * long, *lines]).encode())
    (run / "worker-1.err").write_bytes("\r\n".join(lines * 9).encode())
    for worker in (0, 1):
        whole, pieces = job.all(worker, limit=1 << 24), job.all(worker, limit=1)
        # A line that is longer than a piece is cut in two.
        assert pieces.replace("\n", "") == whole.replace("\n", "")
        assert pieces.count("\n") <= whole.count("\n") + 3
    everything = job.all(limit=1)
    assert sum(line.startswith("[worker 1] ") for line in everything.splitlines()) == job.all(1).count("\n")
