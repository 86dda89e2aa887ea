"""Jobs that a controller finds when it begins: they run on, have ended meanwhile, or were never begun."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from melodeon.backends import fleet
from melodeon.backends.fleet import Fleet
from melodeon.backends.fleet_folder import claim, owner_of, write_order
from melodeon.core.errors import UsageError
from tests.backends.fleets import processes, scripted, watching
from tests.coord.running import eventually


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
