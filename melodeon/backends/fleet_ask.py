"""Asking a running job from an event loop: the same wishes as `coord.client`, with no thread for those that wait.

A wish keeps its id when it is said again, so it has one effect however often an agent dies on the way.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from melodeon.coord import wire
from melodeon.coord.lines import Line
from melodeon.coord.messages import Answer, Ask
from melodeon.core.errors import UsageError

RETRY_S = 0.1
RESEND_S = 5.0
"""An agent that has not answered by then is asked again: it may have been started again behind the same socket."""

_HEARD = msgspec.msgpack.Decoder(Answer | Line)


async def ask(agents: Sequence[str], what: str, values: dict[str, Any] | None = None, wish_id: str = "") -> Answer:
    """Say a wish until it is answered; UsageError if it is refused. Give up by cancelling it.

    One with an id of its own may have been said by another process before: then this is its answer, too.
    """
    wish = Ask(id=wish_id or secrets.token_hex(8), what=what, values=values or {})
    turn = 0
    while True:
        try:
            async with asyncio.timeout(RESEND_S):
                answer = await _say(agents[turn % len(agents)], wish)
        except (OSError, wire.FrameError, TimeoutError):
            answer = None
        if answer is not None:
            if not answer.ok:
                raise UsageError(answer.text)
            return answer
        turn += 1
        await asyncio.sleep(RETRY_S)  # agents start again within a moment


async def _say(address: str, wish: Ask) -> Answer | None:
    """The answer, or None where the connection ended before it."""
    async with _connected(address) as (reader, writer):
        writer.write(wire.pack(wish))
        await writer.drain()
        while (heard := await wire.read_frame(reader, _HEARD)) is not None:
            if isinstance(heard, Answer) and heard.id == wish.id:
                return heard
        return None


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
