"""The log as it grows, to many readers at once (server-sent events).

    controller --one subscription--> Hub --a ring of lines, made once--> reader, reader, ...

A reader has a place in the ring and nothing else, so a slow one costs no memory and no time of anybody. One that the
ring has overtaken, or that does not take what it is sent, is cut: it comes again with `Last-Event-ID`, and is given
what it missed from the store, page by page.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_right

import msgspec
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from melodeon.control.controller import Controller
from melodeon.core.errors import Unreachable
from melodeon.core.service import EventInfo

KEPT = 4096
"""Lines in the ring; a reader that is further behind is cut."""
PIECE = 256
"""Lines sent at once, so that little of it lies in a slow reader's socket."""
PAGE = 200
BEAT_S = 15.0
"""A comment is sent so often, so that nobody in between takes the connection for dead."""
STALL_S = 30.0
"""A reader that takes nothing for so long is cut."""
MOST_READERS = 512
RETRY_MS = 1000
REPLAYS = 4
"""Readers that are given the past at one time."""

log = logging.getLogger("melodeon.api")


class Hub:
    """The newest lines of the log, ready to be sent. Follows the controller from the first reader on."""

    def __init__(self, controller: Controller, *, kept: int = KEPT, beat_s: float = BEAT_S, stall_s: float = STALL_S):
        self._controller, self._kept = controller, kept
        self.beat_s, self.stall_s = beat_s, stall_s
        self._seqs: list[int] = []
        self._jobs: list[str | None] = []
        self._lines: list[bytes] = []
        self.seq = 0
        """The newest line's number."""
        self.first = 1
        """The oldest that is in the ring, or the next to come."""
        self.news = asyncio.Event()
        self.num_readers, self.closed = 0, False
        self.replays = asyncio.Semaphore(REPLAYS)
        self._following: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """One more reader."""
        if self.closed or self.num_readers >= MOST_READERS:
            why = "the service is stopping" if self.closed else f"{self.num_readers} streams are open already"
            raise Unreachable(f"{why}: come again in a moment")
        if self._following is None or self._following.done():
            self.seq = self._controller.engine.seq
            self._seqs, self._jobs, self._lines, self.first = [], [], [], self.seq + 1
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="stream")
        self.num_readers += 1

    def leave(self) -> None:
        """One less."""
        self.num_readers -= 1

    def close(self) -> None:
        """Let all readers go; they will come again to whoever is here then."""
        self.closed = True
        if self._following is not None:
            self._following.cancel()
        self.news.set()

    def after(self, seq: int, job: str | None) -> tuple[bytes, int]:
        """What comes after a line, up to a piece of it, and where that ends."""
        begin = bisect_right(self._seqs, seq)
        end = min(begin + PIECE, len(self._seqs))
        if begin == end:
            return b"", seq
        lines = self._lines[begin:end]
        if job is not None:
            lines = [line for line, about in zip(lines, self._jobs[begin:end], strict=True) if about == job]
        return b"".join(lines), self._seqs[end - 1]

    def page(self, seq: int, job: str | None) -> tuple[bytes, int]:
        """The same from the store."""
        newest = self.seq
        events = self._controller.events(after=seq, job=job, limit=PAGE)
        at = events[-1].seq if events else seq
        return b"".join(line_of(event) for event in events), at if len(events) == PAGE else max(at, newest)

    async def _follow(self) -> None:
        try:
            async for event in self._controller.subscribe(self.seq):
                self._add(event)
        except Exception:
            log.exception("the stream of events has ended")
        finally:
            self.news.set()

    def _add(self, event: EventInfo) -> None:
        self._seqs.append(event.seq)
        self._jobs.append(event.job)
        self._lines.append(line_of(event))
        if len(self._seqs) >= 2 * self._kept:
            for column in (self._seqs, self._jobs, self._lines):
                del column[: -self._kept]
            self.first = self._seqs[0]
        self.seq = event.seq
        news, self.news = self.news, asyncio.Event()
        news.set()


def line_of(event: EventInfo) -> bytes:
    """One event as a browser's EventSource reads it."""
    return b"id: %d\ndata: %b\n\n" % (event.seq, msgspec.json.encode(event))


class EventStream(Response):
    """The answer that does not end: every line after `after` (None: from now on), of one job or of all."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, controller: Controller, after: int | None, job: str | None) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        newest = controller.engine.seq
        # A number that has not been given yet is of another log: begin with what comes.
        self._at = newest if after is None else min(after, newest)
        self._hub, self._job = hub, job

    body = b""
    background: BackgroundTask | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's three
        """Send until the reader goes, falls behind, or the service stops."""
        self._hub.enter()
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave()
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(TimeoutError):
            await self._say(send, b"retry: %d\nid: %d\n\n" % (RETRY_MS, self._at))
            await self._catch_up(send)
            await self._live(send)
            async with asyncio.timeout(1.0):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _catch_up(self, send: Send) -> None:
        """From the store, until the ring has all that is missing."""
        hub = self._hub
        while self._at + 1 < hub.first and not hub.closed:
            async with hub.replays:
                lines, self._at = hub.page(self._at, self._job)
                await asyncio.sleep(0)
            await self._say(send, lines)

    async def _live(self, send: Send) -> None:
        hub = self._hub
        while not hub.closed and self._at + 1 >= hub.first:
            news = hub.news
            lines, at = hub.after(self._at, self._job)
            if at > self._at:
                self._at = at
                await self._say(send, lines)
                continue
            if news.is_set():
                return  # nobody follows the controller any more
            try:
                async with asyncio.timeout(hub.beat_s):
                    await news.wait()
            except TimeoutError:
                await self._say(send, b": still here\n\n")

    async def _say(self, send: Send, lines: bytes) -> None:
        if lines:
            async with asyncio.timeout(self._hub.stall_s):
                await send({"type": "http.response.body", "body": lines, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
