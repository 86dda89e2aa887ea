import asyncio
from contextlib import suppress

from melodeon.coord.agent_links import end_task


def test_ending_a_task_does_not_hide_that_the_caller_is_to_end_too() -> None:
    """An agent whose master leaves just when it leaves itself would stay for good."""

    async def reluctant(begun: asyncio.Event, told: asyncio.Event, may_end: asyncio.Event) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        told.set()
        await may_end.wait()

    async def caller() -> bool:
        begun, told, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        inner = asyncio.create_task(reluctant(begun, told, may_end))
        await begun.wait()
        ending = asyncio.create_task(end_task(inner))
        await told.wait()  # and so `ending` waits for it
        ending.cancel()
        may_end.set()
        await asyncio.wait([ending, inner])
        return ending.cancelled()

    assert asyncio.run(caller())
