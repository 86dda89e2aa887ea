"""Jobs side by side, with real launchers and agents; their workers count instead of training."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from melodeon.backends import fleet
from melodeon.backends.fleet import Fleet
from melodeon.backends.fleet_folder import Owner, claim, owner_of, take, write_order
from melodeon.coord import registry
from melodeon.coord.marks import read_marks
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError
from tests.backends.fleets import order, processes, scripted, watching
from tests.coord.running import eventually, gone


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


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


def test_ended_jobs_are_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "ENDED", 3)

    async def scenario() -> None:
        async with watching() as watcher:
            for number in [*range(10), 0]:
                name = f"job-{number}"
                seen = await watcher.fleet.adopt(tmp_path / name, name, 1)
                assert seen.ended is not None
                assert seen.ended.status == "unstarted"
            assert len(watcher.fleet._jobs) == 3

    asyncio.run(scenario())


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


def test_workers_are_added_and_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path))
            await watcher.fleet.place("job-1", 1, {"node000": (0, 1, 2)})
            seen = await watcher.until(lambda seen: seen.views == 2)
            assert seen.slots == {"node000": (0, 1, 2)}
            await watcher.fleet.place("job-1", 1, {"node000": (0, 1)})
            workers = read_marks(tmp_path / "job-1" / "job-1.1" / "agents" / "node0")
            assert len(workers) == 2  # whoever left is gone: its device is free
            await watcher.until(lambda seen: seen.views == 3 and seen.slots == {"node000": (0, 1)})
            before = watcher.newest["job-1", 1].step
            await watcher.until(lambda seen: seen.step > before)
            await watcher.fleet.stop("job-1", 1)
            await watcher.until(lambda seen: seen.ended is not None)
            record = json.loads((tmp_path / "job-1" / "job-1.1" / "run.json").read_text())
            assert (record["num_workers"], record["last_workers"]) == (1, 2)

    asyncio.run(scenario())


def test_workers_are_on_exactly_the_devices_that_were_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = {"capacity": {"a": 2, "b": 4}, "slots": {"b": (1,)}}
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, **nodes))
            await watcher.until(lambda seen: seen.slots == {"b": (1,)})
            for slots in ({"a": (0, 1), "b": (3,)}, {"b": (0, 2)}, {"a": (1,)}):
                await watcher.fleet.place("job-1", 1, slots)
                await watcher.until(lambda seen, slots=slots: seen.slots == slots)
            views = watcher.newest["job-1", 1].views
            await watcher.fleet.place("job-1", 1, {"a": (1,)})  # already so
            assert watcher.newest["job-1", 1].views == views

    asyncio.run(scenario())


def test_a_wish_survives_the_death_of_an_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path))
            agent = next(pid for pid, line in processes(tmp_path).items() if "coord.agent" in line)
            os.kill(agent, signal.SIGSTOP)
            placing = asyncio.create_task(watcher.fleet.place("job-1", 1, {"node000": (0, 1)}))
            await asyncio.wait([placing], timeout=0.3)  # it has been said, and nobody answers
            os.kill(agent, signal.SIGKILL)
            await placing
            seen = await watcher.until(lambda seen: len(seen.slots["node000"]) == 2)
            assert seen.slots == {"node000": (0, 1)}

    asyncio.run(scenario())


def test_a_job_whose_agents_are_silent_needs_somebody_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melodeon.backends.fleet_job.SILENT_S", 1.5)

    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path))
            agent = next(pid for pid, line in processes(tmp_path).items() if "coord.agent" in line)
            os.kill(agent, signal.SIGSTOP)
            seen = await watcher.until(lambda seen: seen.stuck)
            assert "its agents have not answered" in seen.stuck
            os.kill(agent, signal.SIGCONT)
            await watcher.until(lambda seen: not seen.stuck)

    asyncio.run(scenario())


def test_what_cannot_be_placed_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, capacity={"node000": 4, "gpu": 1}, cuda={"gpu": ("GPU-1",)}))
            for slots, words in (
                ({"node001": (0,)}, "node 'node001' is not in the cluster"),
                ({"node000": (4,)}, "device 4 of node 'node000' is not there"),
                ({"node000": (0, 0)}, "each once"),
                ({}, "choose one kind"),
                ({"gpu": (0,)}, "runs on CPU devices and cannot move to gpu"),
            ):
                with pytest.raises(MelodeonError, match=words):
                    await watcher.fleet.place("job-1", 1, slots)
            with pytest.raises(NotFound, match="incarnation 2 of job job-1 was never started here"):
                await watcher.fleet.place("job-1", 2, {"node000": (0,)})
            await watcher.fleet.kill("job-1", 1)
            with pytest.raises(NotFound, match="has ended"):
                await watcher.fleet.place("job-1", 1, {"node000": (0,)})
            await watcher.fleet.stop("job-1", 1)

    asyncio.run(scenario())


def test_a_job_that_ends_while_it_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, "deaf"))
            stopping = asyncio.create_task(watcher.fleet.stop("job-1", 1))
            placing = asyncio.create_task(watcher.fleet.place("job-1", 1, {"node000": (0, 1)}))
            os.kill(int(registry.find("job-1.1").pid), signal.SIGKILL)
            await stopping
            with pytest.raises(MelodeonError, match=r"ended before it answered|is stopping"):
                await placing
            assert (await watcher.ended()).status == "lost"

    asyncio.run(scenario())


def test_a_job_that_has_just_ended_is_not_blamed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.trains(scripted(tmp_path, steps=30))
            job = watcher.fleet._jobs["job-1", 1]
            events = job.run_dir / "events.jsonl"
            # Its master has ended it, and its launcher still runs: for a moment it can be asked, and says no.
            while not job.progress.is_over and job.ended is None:
                with contextlib.suppress(NotFound):
                    await watcher.fleet.place("job-1", 1, {"node000": (0,)})
            assert '"outcome": "done"' in events.read_text()

    asyncio.run(scenario())


def test_a_script_that_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(scripted(tmp_path, "fail-0"))
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code) == ("failed", 1)
            assert ended.reason == "worker 0 ended with exit code 1"

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
    import msgspec

    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(msgspec.structs.replace(scripted(tmp_path), **fields))
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


SPAWNER = """
    import asyncio, sys
    from pathlib import Path
    from tests.backends.fleets import scripted, watching

    async def main():
        async with watching() as watcher:
            await watcher.trains(scripted(Path(sys.argv[1]), steps=int(sys.argv[2])))
            print("trains", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


def _killed_spawner(folder: Path, steps: int) -> None:
    """Somebody starts a job and is killed while it trains."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SPAWNER), str(folder), str(steps)], stdout=subprocess.PIPE
    ) as spawner:
        assert spawner.stdout is not None
        assert spawner.stdout.readline() == b"trains\n"
        spawner.kill()


def test_a_job_goes_on_when_its_controller_is_killed(tmp_path: Path) -> None:
    _killed_spawner(tmp_path, 100_000)

    async def scenario() -> None:
        async with watching() as watcher:
            seen = await watcher.fleet.adopt(tmp_path / "job-1", "job-1", 1)
            assert seen.alive
            assert seen.training
            assert seen.views == 1
            again = await watcher.fleet.adopt(tmp_path / "job-1", "job-1", 1)
            assert (again.alive, again.training, again.views, again.slots) == (True, True, 1, seen.slots)
            await watcher.until(lambda now: now.step > seen.step)
            await watcher.fleet.place("job-1", 1, {"node000": (0, 2)})
            await watcher.until(lambda now: len(now.slots["node000"]) == 2)
            await watcher.fleet.stop("job-1", 1)
            assert (await watcher.ended()).status == "stopped"

    asyncio.run(scenario())


def test_a_job_that_has_ended_meanwhile_is_found(tmp_path: Path) -> None:
    _killed_spawner(tmp_path, 40)
    # Not the command lines: a process that is about to end has none any more.
    eventually(lambda: (owner := owner_of(tmp_path / "job-1" / "job-1.1")) is not None and not owner.is_alive)
    eventually(lambda: not processes(tmp_path))
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "job-1" / "job-1.1" / "run.json", (hour_ago, hour_ago))

    async def scenario() -> None:
        async with watching() as watcher:
            seen = await watcher.fleet.adopt(tmp_path / "job-1", "job-1", 1)
            assert seen.ended is not None
            assert (seen.ended.status, seen.ended.step, seen.alive) == ("done", 40, False)
            assert seen.ended.at == pytest.approx(hour_ago, abs=1), "when it ended, not when it was found"
            assert await watcher.ended() == seen.ended

    asyncio.run(scenario())


def test_what_was_never_begun_is_claimed(tmp_path: Path) -> None:
    late = write_order(scripted(tmp_path))

    async def scenario() -> None:
        async with watching() as watcher:
            for incarnation in (1, 2):
                seen = await watcher.fleet.adopt(tmp_path / "job-1", "job-1", incarnation)
                assert seen.ended is not None
                assert seen.ended.status == "unstarted"

    asyncio.run(scenario())
    refused = subprocess.run(
        [sys.executable, "-m", "melodeon.backends.launcher", str(late)], capture_output=True, text=True, check=False
    )
    assert refused.returncode == UsageError.exit_code
    assert "was started or claimed before" in refused.stderr
    assert not processes(tmp_path)


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


def test_watching_many_costs_little(tmp_path: Path) -> None:
    """A thousand jobs that have ended are told of as they are found, and nothing is kept open for them."""

    async def scenario() -> None:
        fleet = Fleet()
        for number in range(1000):
            folder = tmp_path / f"old-{number}"
            folder.mkdir()
            assert claim(folder / f"old-{number}.1")
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(1000):
            seen = await fleet.adopt(tmp_path / f"old-{number}", f"old-{number}", 1)
            assert seen.ended is not None
        assert not fleet._running
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
        await fleet.close()

    asyncio.run(scenario())


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
