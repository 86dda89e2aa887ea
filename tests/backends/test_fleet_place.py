"""Wishes for devices, to jobs with real launchers and agents: they are carried out, or refused with a sentence."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from melodeon.coord import registry
from melodeon.coord.marks import read_marks
from melodeon.core.errors import MelodeonError, NotFound
from tests.backends.fleets import processes, scripted, watching


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
