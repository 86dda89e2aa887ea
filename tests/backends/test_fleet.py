"""Jobs side by side, with real launchers and agents; their workers count instead of training."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from melodeon.backends.fleet_folder import Owner, claim, owner_of, take, write_order
from melodeon.coord import registry
from melodeon.core.errors import Unreachable, UsageError
from tests.backends.fleets import order, processes, scripted, watching
from tests.coord.running import gone


def test_a_job_is_launched_and_seen_to_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(scripted(tmp_path, steps=60, slots={"node000": (1, 3)}))
            await watcher.until(lambda seen: seen.alive)
            await watcher.until(lambda seen: seen.training and seen.slots == {"node000": (1, 3)})
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code, ended.step) == ("done", 0, 60)
            assert watcher.newest["job-1", 1].views == 1

    asyncio.run(scenario())
    assert not processes(tmp_path)
    assert registry.entries() == []
    assert (tmp_path / "job-1" / "job-1.1" / "launcher.log").exists()


def test_a_launch_is_done_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher, watching() as other:
            once = scripted(tmp_path)
            await asyncio.gather(watcher.fleet.launch(once), watcher.fleet.launch(once), other.fleet.launch(once))
            await watcher.until(lambda seen: seen.training)
            await other.until(lambda seen: seen.training)
            await watcher.fleet.launch(once)
            agents = [line for line in processes(tmp_path).values() if "agent.json" in line]
            assert len(agents) == 1
            await other.fleet.stop("job-1", 1)
            assert (await watcher.ended()).status == (await other.ended()).status == "stopped"
            await watcher.fleet.launch(once)  # it has ended, and stays so
            assert not processes(tmp_path)

    asyncio.run(scenario())
    # Of two that were started the second has said why it did not begin, or came so late that it found the folder made.
    log = tmp_path / "job-1" / "launch-1.log"
    assert not log.exists() or "was started or claimed before" in log.read_text()


def test_two_launchers_of_one_incarnation(tmp_path: Path) -> None:
    file = write_order(scripted(tmp_path, steps=20))
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "melodeon.backends.launcher", str(file)], stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[1] for process in launchers]
    assert sorted(process.returncode for process in launchers) == [0, 2, 2]
    assert sum("incarnation 1 of job job-1 was started or claimed before" in text for text in said) == 2


def test_a_folder_is_taken_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "x.1"
    assert owner_of(run_dir) is None
    assert claim(run_dir)
    assert not take(run_dir, Owner(pid=os.getpid(), started=1))
    assert not claim(run_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["x.1"]
    owner = owner_of(run_dir)
    assert owner is not None
    assert not owner.is_alive


def test_of_many_who_want_a_folder_one_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            run_dir = tmp_path / f"x.{number}"
            won = list(pool.map(lambda pid, run_dir=run_dir: take(run_dir, Owner(pid=pid, started=1)), range(8)))
            assert sum(won) == 1
            assert owner_of(run_dir) == Owner(pid=won.index(True), started=1)
    assert not list(tmp_path.glob(".*"))


def test_a_disk_that_cannot_be_written_to_is_no_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            folder = tmp_path / "full"
            folder.write_text("no folder")
            for _ in range(2):
                with pytest.raises(Unreachable, match=r"job job-1.1 cannot be started now \(Not a directory\)"):
                    await watcher.fleet.launch(scripted(folder))
                with pytest.raises(Unreachable, match=r"cannot be claimed now \(Not a directory\)"):
                    await watcher.fleet.adopt(folder / "job-1", "job-1", 1)
            folder.unlink()
            folder.mkdir()
            await watcher.trains(scripted(folder))

    asyncio.run(scenario())


def test_a_script_that_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(scripted(tmp_path, "fail-0"))
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code) == ("failed", 1)
            assert ended.reason == "worker 0 ended with exit code 1: ValueError: this worker was told to fail"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workdir": "/nowhere"}, "workdir '/nowhere' cannot be entered (No such file or directory)"),
        ({"argv": ("none.py",)}, "script 'none.py' is not in"),
        ({"run_as": "no-such-user"}, "its launcher could not begin: user 'no-such-user' is not known on this machine"),
    ],
)
def test_a_job_that_cannot_begin_fails_with_a_sentence(tmp_path: Path, fields: dict[str, str], words: str) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(replace(scripted(tmp_path), **fields))
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code) == ("failed", UsageError.exit_code)
            assert words in ended.reason

    asyncio.run(scenario())


def test_a_job_whose_folder_is_removed_while_it_runs_is_lost_and_not_stillborn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path))
            launcher = registry.find("job-1.1").pid
            shutil.rmtree(tmp_path / "job-1" / "job-1.1")
            os.kill(launcher, signal.SIGKILL)
            ended = await watcher.ended()
            assert (ended.status, ended.reason) == (
                "lost",
                f"its folder {tmp_path / 'job-1' / 'job-1.1'} was removed while it ran",
            )

    asyncio.run(scenario())


def test_nothing_of_a_job_outlives_its_launcher(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, slots={"node000": (0, 1)}))
            run_dir = tmp_path / "job-1" / "job-1.1"
            worker = int((run_dir / "agents/node0/worker-0.pid").read_text().split()[0])
            nursery = int((run_dir / "agents/node0/nursery.pid").read_text().split()[0])
            # Those who sleep do not see that they should end: when it is told that the job is lost, they have.
            os.kill(worker, signal.SIGSTOP)
            os.kill(nursery, signal.SIGSTOP)
            os.kill(registry.find("job-1.1").pid, signal.SIGKILL)
            ended = await watcher.ended()
            assert ended.status == "lost"
            assert "its launcher is gone" in ended.reason
            assert gone(worker, 0.0)
            assert gone(nursery, 0.0)
            assert not processes(tmp_path)

    asyncio.run(scenario())


def test_a_launcher_that_is_killed_before_it_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(scripted(tmp_path))
            watcher.fleet._jobs["job-1", 1].signal(signal.SIGKILL)
            ended = await watcher.ended()
            assert ended.status == "lost"
            assert (tmp_path / "job-1" / "job-1.1" / "claimed").exists() == ("before it began" in ended.reason)

    asyncio.run(scenario())


def test_kill_does_not_wait_for_a_deaf_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, "deaf"))
            await watcher.fleet.kill("job-1", 1)
            assert (await watcher.ended()).status == "stopped"
            await watcher.fleet.kill("job-1", 1)
            assert not processes(tmp_path)

    asyncio.run(scenario())


def test_jobs_side_by_side(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            jobs = [f"side-{number}" for number in range(3)]
            for number, job in enumerate(jobs):
                await watcher.fleet.launch(scripted(tmp_path, job=job, slots={"node000": (number,)}))
            for job in jobs:
                await watcher.until(lambda seen: seen.training, job)
            together = [watcher.newest[job, 1] for job in jobs]
            assert [(seen.training, seen.slots["node000"]) for seen in together] == [(True, (n,)) for n in range(3)]
            await watcher.fleet.stop("side-1", 1)
            assert (await watcher.ended("side-1")).status == "stopped"
            for job in ("side-0", "side-2"):  # and the others train on
                before = watcher.newest[job, 1].step
                await watcher.until(lambda seen, before=before: seen.step > before, job)

    asyncio.run(scenario())
    assert not processes(tmp_path)


def test_an_observer_that_comes_late_sees_what_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path))
            observer = watcher.fleet.observe()
            assert (await anext(observer)).training
            again = await anext(observer)
            assert again.step > 0
            await observer.aclose()

    asyncio.run(scenario())


def test_the_controllers_secrets_are_not_for_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_TOKEN", "secret")
    monkeypatch.setenv("OTHER", "for all")
    script = tmp_path / "show.py"
    script.write_text(
        "import os; print(os.environ.get('MELODEON_TOKEN'), os.environ['OTHER'], os.environ['MINE'], os.getcwd())"
    )

    async def scenario() -> None:
        async with watching() as watcher:
            (tmp_path / "here").mkdir()
            fields = {"workdir": str(tmp_path / "here"), "env": {"MINE": "of the job"}, "preload": ("json",)}
            await watcher.fleet.launch(order(tmp_path, str(script), **fields))
            await watcher.ended()
            text = watcher.fleet.logs(tmp_path / "job-1", "", 0).text
            assert text == f"None for all of the job {tmp_path}/here\n"

    asyncio.run(scenario())
