"""Asking a real job, through agents that die meanwhile."""

import os
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from melodeon.coord import client, registry
from melodeon.coord.marks import started
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError
from tests.coord.running import Running, eventually, gone


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def entry(name: str, **changes: object) -> registry.Entry:
    here = registry.Entry(
        id=name,
        run_dir=f"/runs/{name}",
        pid=os.getpid(),
        started=started(os.getpid()) or 0,
        agents=(),
        created="2026-01-01",
    )
    return msgspec.structs.replace(here, **changes)


def test_every_wish_is_answered(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1) as job:
        job.wait_for_view(0)
        handle = client.connect(job.handle.id[:8])
        assert handle.id == job.handle.id
        assert handle.run_dir == job.folder
        out = handle.scale_out(2)
        assert (out.ok, out.values["workers"]) == (True, 3)
        assert handle.scale(2).values["workers"] == 2
        assert handle.scale_in().values["workers"] == 1
        assert handle.migrate().ok
        assert handle.checkpoint().ok
        status = handle.status()
        assert (status["job"], status["phase"]) == (handle.id, "training")
        eventually(lambda: len(handle.status()["workers"]) == 1)  # the one that left may take a moment to end
        assert handle.stop().values["outcome"] == "stopped"
        assert job.end().exit_code == 7
        with pytest.raises(NotFound, match="no job runs"):
            client.connect()


def test_a_wish_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1) as job:
        job.wait_for_view(0)
        for wish in (lambda: job.handle.scale(0), lambda: job.handle.scale(99), lambda: job.handle.scale_in(1)):
            with pytest.raises(UsageError):
                wish()
        with pytest.raises(UsageError, match="both"):
            job.handle.scale_in(1, workers=[0])


def test_a_wish_outlives_the_agent_that_took_it(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, agents=2, elastic={"ttl_s": 4.0}) as job:  # time for both agents to come back
        job.wait_for_view(0, 1)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(job.handle.scale_out(2)))
        agents = [job.agent(0), job.agent(1)]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        asking.start()
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
        asking.join(60)
        assert [answer.ok for answer in answers] == [True]
        job.wait_for_view(0, 1, 2, 3)
        assert len(job.kinds("ask")) == 1  # said to several, again and again, it had one effect


def test_a_wish_finds_its_way_around_a_stuck_agent(tmp_path: Path) -> None:
    with Running(tmp_path, workers=2, agents=2, elastic={"ttl_s": 30.0}) as job:
        job.wait_for_view(0, 1)
        master = str(job.kinds("master")[0]["agent"])
        other = job.agent(1 if master == "node0" else 0)
        job.handle._first = 1 if master == "node0" else 0
        os.kill(other, signal.SIGSTOP)
        assert job.handle.status()["phase"] == "training"
        os.kill(other, signal.SIGCONT)


def test_watching_ends_with_the_job(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1, steps=100) as job:
        seen = [status["step"] for status in job.handle.watch(every_s=0.2)]
        assert seen == sorted(seen)
        assert len(seen) >= 2
        assert job.end().ok


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "UNREACHABLE_S", 0.3)
    handle = client.JobHandle(entry("deaf", agents=(str(tmp_path / "nobody.sock"),)))
    registry.write(entry("deaf"))
    with pytest.raises(Unreachable, match="deaf has not answered 'status'") as caught:
        handle.status()
    assert caught.value.exit_code == 5


def test_a_deadline(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        registry.write(entry("slow"))
        with pytest.raises(Unreachable):
            client.JobHandle(entry("slow", agents=(str(tmp_path / "s"),))).ask("profile", timeout_s=0.1)


def test_a_job_that_ended_meanwhile_is_told_from_one_that_is_stuck() -> None:
    with pytest.raises(NotFound, match="ended before it answered"):
        client.JobHandle(entry("over")).stop()


def test_jobs_are_found_by_what_people_type() -> None:
    registry.write(entry("20260101-old", created="2026-01-01"))
    registry.write(entry("20260102-new", created="2026-01-02"))
    registry.write(entry("dead", pid=2**22 - 1))
    assert [e.id for e in registry.entries()] == ["20260101-old", "20260102-new"]
    assert registry.find().id == registry.find("last").id == registry.find("20260102").id == "20260102-new"
    assert registry.find("/runs/20260101-old").id == registry.find("20260101-old").id == "20260101-old"
    with pytest.raises(NotFound, match="could be any of 20260101-old, 20260102-new"):
        registry.find("2026")
    with pytest.raises(NotFound, match="did you mean 20260102-new") as caught:
        registry.find("20260103-new")
    assert caught.value.exit_code == 4
    registry.remove("20260102-new")
    assert registry.find("2026").id == "20260101-old"


def test_a_job_is_found_by_its_folder_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "disk" / "runs" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    registry.write(entry("mine", run_dir=str(folder.resolve())))
    assert registry.find(tmp_path / "home" / "runs" / "mine").id == "mine"


def test_an_id_has_one_job_at_a_time_and_only_its_own_entry_is_removed() -> None:
    registry.write(entry("mine"), alone=True)
    registry.write(entry("mine", created="2026-01-02"), alone=True)
    with pytest.raises(UsageError, match=r"^job 'mine' runs already in /runs/mine: give another --name$"):
        registry.write(entry("mine", run_dir="/other/mine"), alone=True)
    registry.remove("mine", Path("/other/mine"))
    assert registry.find("mine") == entry("mine", created="2026-01-02")
    registry.remove("mine", Path("/runs/mine"))
    registry.write(entry("mine", pid=2**22 - 1), alone=True)  # its launcher is gone
    registry.write(entry("mine", run_dir="/other/mine"), alone=True)
    assert [e.run_dir for e in registry.entries()] == ["/other/mine"]


def test_jobs_of_one_id_in_two_folders_are_told_apart() -> None:
    """As two clusters of one user have them."""
    one, two = entry("cnn-1.1", run_dir="/one/cnn-1.1"), entry("cnn-1.1", run_dir="/two/cnn-1.1", created="2026-01-02")
    registry.write(one)
    registry.write(two)
    assert registry.entries() == [one, two]
    assert registry.find("/one/cnn-1.1") == one
    with pytest.raises(NotFound, match=r"2 jobs 'cnn-1\.1' run .*: name a run's folder, of /one/.*, /two/"):
        registry.find("cnn-1")
    registry.remove("cnn-1.1", Path("/one/cnn-1.1"))
    assert registry.entries() == [two]


def test_an_id_of_any_length_has_an_entry() -> None:
    long, longer = "a" * 250, "a" * 251
    registry.write(entry(long), alone=True)
    registry.write(entry(longer), alone=True)
    registry.remove(long)
    assert [e.id for e in registry.entries()] == [longer]


def test_of_many_that_want_an_id_at_once_one_gets_it() -> None:
    refused: list[str] = []

    def claim(folder: str) -> None:
        try:
            registry.write(entry("mine", run_dir=folder), alone=True)
        except UsageError:
            refused.append(folder)

    folders = [f"/runs/{number}" for number in range(8)]
    claims = [threading.Thread(target=claim, args=(folder,)) for folder in folders]
    for thread in claims:
        thread.start()
    for thread in claims:
        thread.join()
    assert sorted([*refused, registry.find("mine").run_dir]) == folders


def test_a_number_that_no_message_can_hold_is_refused_before_it_is_sent() -> None:
    handle = client.JobHandle(entry("any"))
    for wish in (
        lambda: handle.scale(2**70),
        lambda: handle.profile(1, 2**70),
        lambda: handle.scale_in(workers=[-(2**70)]),
    ):
        with pytest.raises(UsageError, match=r"holds a number that nobody can read: give numbers below 2\*\*63"):
            wish()


def test_a_name_that_no_message_can_hold_is_refused_before_it_is_sent() -> None:
    handle = client.JobHandle(entry("any"))
    typed = os.fsdecode(b"n\xff")  # as a command line gives what is not UTF-8
    for wish in (lambda: handle.scale_out(1, on=typed), lambda: handle.migrate(to=typed)):
        with pytest.raises(UsageError, match=r"'n\\udcff'.* holds a name that nobody can read: give it in UTF-8"):
            wish()


def test_wishes_of_other_kinds_than_they_need_are_refused_by_the_job(tmp_path: Path) -> None:
    with Running(tmp_path, workers=1) as job:
        job.wait_for_view(0)
        odd: Any = job.handle
        for wish, words in (
            (lambda: odd.place([1]), r"slots=\[1\] must name slots by agent"),
            (lambda: odd.place(None), "slots=None must name slots by agent"),
            (lambda: odd.place({"node0": 3}), "slots of 'node0' are 3: they must be a list of numbers"),
            (lambda: odd.place({"node0": "01"}), "slots of 'node0' are '01': they must be a list of numbers"),
            (lambda: odd.scale_in(workers=3), "workers=3 must be a list of whole numbers"),
        ):
            with pytest.raises(UsageError, match=words):
                wish()


def test_a_name_that_no_file_can_have_is_nobodys() -> None:
    registry.write(entry("mine"))
    with pytest.raises(NotFound, match="did you mean mine"):
        client.connect("a\0b")


def test_a_number_that_was_given_again_is_nobody() -> None:
    registry.write(entry("again", started=1))
    assert registry.entries() == []


def test_the_registry_is_for_its_owner_only() -> None:
    registry.write(entry("mine"))
    folder = registry.folder()
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.glob("mine*.json")] == [0o600]
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    folder.parent.chmod(0o777)
    with pytest.raises(MelodeonError, match="only you can open"):
        registry.entries()


@pytest.mark.parametrize("base", ["a-file", "nowhere"])
def test_a_registry_that_cannot_be_made_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    (tmp_path / "a-file").mkdir()
    (tmp_path / "a-file" / f"melodeon-{os.getuid()}").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / base))
    with pytest.raises(MelodeonError, match=r"cannot be made .*: set XDG_RUNTIME_DIR"):
        registry.entries()


def test_a_file_of_another_version_is_passed_over() -> None:
    (registry.folder() / "odd.json").write_text("{}")
    registry.write(entry("mine"))
    assert [e.id for e in registry.entries()] == ["mine"]
