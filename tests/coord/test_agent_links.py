import asyncio
from contextlib import suppress

from melodeon.coord.agent_links import end_task


def test_ending_a_task_does_not_hide_that_the_caller_is_to_end_too() -> None:
    """An agent whose master leaves just when it leaves itself would stay for good."""

    async def reluctant(may_end: asyncio.Event) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await may_end.wait()

    async def caller() -> bool:
        may_end = asyncio.Event()
        inner = asyncio.create_task(reluctant(may_end))
        await asyncio.sleep(0)
        ending = asyncio.create_task(end_task(inner))
        await asyncio.sleep(0)
        ending.cancel()
        may_end.set()
        await asyncio.wait([ending, inner])
        return ending.cancelled()

    assert asyncio.run(caller())
