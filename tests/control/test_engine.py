"""The loop itself: that it ends when it is told to."""

import asyncio
from pathlib import Path

from tests.control.stage import Stage


def test_a_loop_that_is_stopped_while_news_come_ends(tmp_path: Path) -> None:
    async def act() -> None:
        async with Stage(tmp_path) as stage:
            engine = stage.controller.engine
            running = asyncio.create_task(engine.run())
            await engine.found.wait()
            await asyncio.sleep(0)  # it waits for news now
            engine._stirred.set()
            running.cancel()
            done, _ = await asyncio.wait({running}, timeout=5)
            assert done, "it goes on as if nobody had stopped it"
            assert running.cancelled()

    asyncio.run(act())
