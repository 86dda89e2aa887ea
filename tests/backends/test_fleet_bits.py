"""Jobs that train with torch under a fleet: what is suspended goes on with the same bits, however it went."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.backends.fleets import order, processes, training, watching

EPOCHS = ("--epochs", "4")  # 100 steps


@pytest.mark.timeout(240)  # three jobs import torch, on a machine that may be busy
def test_a_suspended_job_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            undisturbed = training(tmp_path / "a", *EPOCHS, job="calm-1", workdir=str(tmp_path))
            disturbed = training(tmp_path, *EPOCHS, "--pace", "0.002", slots={"node000": (0, 1)})
            await watcher.fleet.launch(undisturbed)
            seen = await watcher.trains(disturbed, 10)
            assert (seen.total_steps, seen.steps_per_epoch, seen.virtual_workers) == (100, 25, 6)
            await watcher.fleet.stop("job-1", 1)
            ended = await watcher.ended()
            assert ended.status == "stopped"
            assert ended.step is not None
            assert 10 <= ended.step < 100
            again = msgspec.structs.replace(disturbed, incarnation=2, slots={"node000": (0, 1, 2)})
            first = await watcher.trains(again)
            assert first.step >= ended.step
            await watcher.fleet.place("job-1", 2, {"node000": (0,)})
            end = await watcher.ended(incarnation=2)
            calm = await watcher.ended("calm-1")
            assert (end.status, end.step) == (calm.status, calm.step) == ("done", 100)
            assert end.digest == calm.digest
            assert end.digest
            assert watcher.newest["job-1", 2].metrics["loss"] > 0
            assert watcher.newest["job-1", 2].pause_s > 0

    asyncio.run(scenario())
    assert not processes(tmp_path)


def test_memory_is_limited(tmp_path: Path) -> None:
    script = tmp_path / "greedy.py"
    script.write_text("import torch\nimport melodeon\nmelodeon.join(virtual_workers=2)\ntorch.empty(1 << 40)\n")

    async def scenario() -> None:
        async with watching() as watcher:
            fields = {"memory": 8 << 30, "preload": ("torch", "melodeon.runtime.join")}
            await watcher.fleet.launch(order(tmp_path, str(script), **fields))
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code) == ("failed", 1)
            assert "allocate" in ended.reason
            assert "each of its processes may have 8 GiB: raise the job's field memory" in ended.reason

    asyncio.run(scenario())


def test_too_little_memory_to_begin_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(training(tmp_path, *EPOCHS, memory=300 << 20))
            ended = await watcher.ended()
            assert ended.status == "failed"
            assert "each of its processes may have 300 MiB: raise the job's field memory" in ended.reason

    asyncio.run(scenario())
    assert not processes(tmp_path)


def test_a_scripts_own_error_is_its_end(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import melodeon\nmelodeon.join(virtual_workers=2)\nraise melodeon.UsageError('no data here')\n")

    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(order(tmp_path, str(script), preload=("torch", "melodeon.runtime.join")))
            ended = await watcher.ended()
            assert (ended.status, ended.exit_code) == ("failed", 2)
            assert "no data here" in ended.reason

    asyncio.run(scenario())
