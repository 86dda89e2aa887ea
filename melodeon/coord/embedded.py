"""The embedded store's client: one connection, made again whenever it is lost, over which everything is sent again.

Requests carry numbers, so what the server has applied already is only answered again. Watches remember the revision
that they have reached, and go on from there.
"""

import asyncio
import contextlib
import itertools
import re
import uuid
from collections.abc import AsyncGenerator

import msgspec

from melodeon.coord.closing import Closing
from melodeon.coord.embedded_values import (
    FROM_SERVER,
    Delete,
    FromServer,
    Get,
    Grant,
    Happened,
    Hello,
    List,
    Operation,
    Ping,
    Put,
    Refresh,
    Refusal,
    Reply,
    Request,
    Revoke,
    Unwatch,
    WatchFrom,
    Welcome,
)
from melodeon.coord.store import (
    LAST_PORT,
    Change,
    Entry,
    Fence,
    Listing,
    Refused,
    StoreError,
    StoreUnreachable,
    check_key,
    check_ttl,
)
from melodeon.coord.wire import FrameError, pack, read_frame
from melodeon.core.errors import UsageError

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2
"""Between two attempts to connect."""


def checked(address: str) -> str:
    """The address, if it is one of an embedded store."""
    found = re.fullmatch(r"unix:.+|tcp:.+:(\d{1,5})", address)
    if found is None or int(found[1] or 0) > LAST_PORT:
        raise UsageError(f"{address!r} is no address of an embedded store: give unix:PATH or tcp:HOST:PORT")
    return address


class _Call:
    """A request that waits for its answer."""

    def __init__(self, operation: Operation, answer: asyncio.Future[Reply]) -> None:
        self.operation = operation
        self.answer = answer


class _Watch:
    """How far a watch has come, and what its reader has not taken yet."""

    def __init__(self, prefix: str, after: int, now: float) -> None:
        self.prefix = prefix
        self.after = after
        self.waiting_since: float | None = now
        """When the connection that it lives on was lost; None while there is one."""
        self.news: asyncio.Queue[tuple[Change, ...] | StoreError | None] = asyncio.Queue()


class EmbeddedStore(Closing):
    """A client of an `EmbeddedServer` at `unix:PATH` or `tcp:HOST:PORT`. Belongs to one event loop."""

    def __init__(self, address: str, *, token: str = "", patience_s: float = 10.0, beat_s: float = 1.0) -> None:
        """`patience_s`: how long a call waits for the store. A server silent for 3 `beat_s` is taken for lost."""
        self.address = checked(address)
        self._token, self._patience_s, self._beat_s = token, patience_s, beat_s
        self._client = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._last = 0
        self._calls: dict[int, _Call] = {}
        self._watches: dict[int, _Watch] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._runner: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._closed = False

    # -- the store's methods

    async def get(self, key: str) -> Entry | None:
        """The entry, if the key exists."""
        return (await self._ask(Get(check_key(key)))).entry

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        lease: int | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
    ) -> int:
        """Write, and give the new revision."""
        return (await self._ask(Put(check_key(key), value, lease, expect, fence))).value

    async def delete(self, key: str, *, fence: Fence | None = None) -> bool:
        """Remove the key; whether it was there."""
        return bool((await self._ask(Delete(check_key(key), fence))).value)

    async def list(self, prefix: str) -> Listing:
        """All keys that begin so."""
        reply = await self._ask(List(prefix))
        return Listing(reply.entries or {}, reply.revision)

    async def grant(self, ttl_s: float) -> int:
        """A new lease."""
        return (await self._ask(Grant(check_ttl(ttl_s)))).value

    async def refresh(self, lease: int) -> None:
        """Begin its time again."""
        await self._ask(Refresh(lease))

    async def revoke(self, lease: int) -> None:
        """End it now, and delete its keys."""
        await self._ask(Revoke(lease))

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        """Every change with a higher revision; ends when this client is closed."""
        number, watch = next(self._numbers), _Watch(prefix, after, asyncio.get_running_loop().time())
        self._watches[number] = watch
        self._start()
        if self._writer is not None:
            watch.waiting_since = None
            self._send(WatchFrom(number, prefix, after))
        try:
            while (news := await watch.news.get()) is not None:
                if isinstance(news, StoreError):
                    raise news
                for change in news:
                    yield change
        finally:
            if self._watches.pop(number, None) is not None:
                self._send(Unwatch(number))

    async def close(self) -> None:
        """Let the connection go."""
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail(StoreUnreachable(f"the client of the store at {self.address} was closed"))

    # -- requests

    async def _ask(self, operation: Operation) -> Reply:
        number, loop = next(self._numbers), asyncio.get_running_loop()
        self._last = number
        self._start()
        # Packed before it is noted: one that is too long is this caller's error alone.
        data = pack(Request(number, self._done(), operation))
        if self._writer is not None:
            self._writer.write(data)
        call = self._calls[number] = _Call(operation, loop.create_future())
        try:
            async with asyncio.timeout(self._patience_s):
                reply = await call.answer
        except TimeoutError:
            raise StoreUnreachable(
                f"the store at {self.address} has not answered for {self._patience_s:g} s: is its host running?"
            ) from None
        finally:
            del self._calls[number]
        if reply.failure is not None:
            raise reply.failure.error()
        return reply

    def _done(self) -> int:
        return next(iter(self._calls), self._last) - 1

    def _send(self, document: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(pack(document))

    def _fail(self, error: StoreError) -> None:
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
        for watch in self._watches.values():
            watch.news.put_nowait(None if self._closed else error)

    # -- the connection

    def _start(self) -> None:
        if self._closed:
            raise StoreUnreachable(f"the client of the store at {self.address} was closed")
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                reader, writer = await self._connect()
            except Refused as error:
                self._fail(error)
                return
            except (OSError, TimeoutError, FrameError):
                self._give_up_watches()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            try:
                await self._converse(reader, writer)
            finally:
                self._writer = None
                writer.transport.abort()
                now = asyncio.get_running_loop().time()
                for watch in self._watches.values():
                    watch.waiting_since = now

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which the server has welcomed this client."""
        kind, _, place = self.address.partition(":")
        async with asyncio.timeout(min(3 * self._beat_s, self._patience_s)):
            if kind == "unix":
                reader, writer = await asyncio.open_unix_connection(place)
            else:
                host, _, port = place.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(pack(Hello(self._client, self._token)))
                answer = await read_frame(reader, FROM_SERVER)
                if isinstance(answer, Refusal):
                    raise Refused(f"the store at {self.address} refuses this client: {answer.text}")
                if not isinstance(answer, Welcome):
                    raise ConnectionResetError("the server hung up before its welcome")
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send again all that is open, then take what comes until the connection is lost."""
        loop = asyncio.get_running_loop()
        self._writer, self._heard_at = writer, loop.time()
        for number, watch in self._watches.items():
            watch.waiting_since = None
            self._send(WatchFrom(number, watch.prefix, watch.after))
        done = self._done()
        for number, call in self._calls.items():
            self._send(Request(number, done, call.operation))
        beat = loop.create_task(self._beat(writer))
        try:
            with contextlib.suppress(OSError, FrameError):
                while (document := await read_frame(reader, FROM_SERVER)) is not None:
                    self._heard_at = loop.time()
                    self._hear(document)
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        """A cut cable says nothing, so ask for a sign of life, and hang up when none comes."""
        loop = asyncio.get_running_loop()
        while (silent_s := loop.time() - self._heard_at) < 3 * self._beat_s:
            if silent_s >= self._beat_s:
                number = self._last = next(self._numbers)
                self._send(Request(number, self._done(), Ping()))
            await asyncio.sleep(self._beat_s)
        writer.transport.abort()

    def _hear(self, document: FromServer) -> None:
        match document:
            case Reply():
                for number, watch in self._watches.items():
                    if document.number > number:  # asked after the watch was, so every change up to it has come
                        watch.after = max(watch.after, document.revision)
                call = self._calls.get(document.number)
                if call is not None and not call.answer.done():
                    call.answer.set_result(document)
            case Happened():
                self._happened(document)
            case Refusal():
                self._fail(Refused(f"the store at {self.address} refuses: {document.text}"))
            case Welcome():
                pass

    def _happened(self, happened: Happened) -> None:
        watch = self._watches.get(happened.watch)
        if watch is None:
            return
        if happened.failure is not None:
            watch.news.put_nowait(happened.failure.error())
        elif happened.revision > watch.after:
            watch.after = happened.revision
            watch.news.put_nowait(happened.changes)

    def _give_up_watches(self) -> None:
        now = asyncio.get_running_loop().time()
        for number, watch in list(self._watches.items()):
            if watch.waiting_since is not None and now - watch.waiting_since > self._patience_s:
                del self._watches[number]
                watch.news.put_nowait(
                    StoreUnreachable(
                        f"the store at {self.address} has been away for {self._patience_s:g} s: is its host running?"
                    )
                )
