"""Speeds of real jobs, measured at several sizes; their workers count instead of training."""

import asyncio
from pathlib import Path

import pytest

from melodeon.core.errors import UsageError
from tests.backends.fleets import scripted, watching
from tests.coord.running import eventually


def test_speed_is_measured_at_several_sizes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher:
            await watcher.fleet.launch(scripted(tmp_path, slots={"node000": (0, 1)}))
            rates = await watcher.fleet.profile("job-1", 1, 1, 2)
            assert all(set(seen.slots.get("node000", ())) <= {0, 1} for seen in watcher.all)
            assert set(rates) == {1, 2}
            assert all(rate > 0 for rate in rates.values())
            with pytest.raises(UsageError, match="a profile of 3 to 99 workers"):
                await watcher.fleet.profile("job-1", 1, 3, 99)

    asyncio.run(scenario())


def test_a_profile_that_a_controller_did_not_live_to_see_is_taken_up_by_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching() as watcher, watching() as other:
            await watcher.trains(scripted(tmp_path, slots={"node000": (0, 1)}))
            asked = asyncio.create_task(watcher.fleet.profile("job-1", 1, 1, 2))
            events = tmp_path / "job-1" / "job-1.1" / "events.jsonl"
            await asyncio.to_thread(eventually, lambda: '"what": "profile"' in events.read_text())
            asked.cancel()
            await other.fleet.adopt(tmp_path / "job-1", "job-1", 1)
            rates = await other.fleet.profile("job-1", 1, 1, 2)
            assert set(rates) == {1, 2}
            assert events.read_text().count('"what": "profile"') == 1
            # Once it is over it is not taken again for whoever asks again.
            assert await other.fleet.profile("job-1", 1, 1, 2) == rates

    asyncio.run(scenario())
