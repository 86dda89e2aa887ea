"""Real stores for the tests: an embedded server in the test's own event loop, etcd as a process, each behind a proxy.

A `Site` is one store with what tests do to it: cut its connections, swallow an answer, stop it, start it again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from melodeon.coord.embedded import EmbeddedStore
from melodeon.coord.embedded_data import Data
from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.etcd import EtcdStore
from melodeon.coord.store import Change, Store
from tests.coord.etcd_process import DEADLINE_S, EtcdMember

HISTORY = 64
"""Changes that the embedded store of a test keeps."""


# -- a network that can fail


class Proxy:
    """Passes bytes on between clients and a server, until it is told to fail."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.connect = connect
        self.swallow = 0
        """So many answers are taken from the server and not passed on; the connection ends instead."""
        self.swallowed = asyncio.Event()
        self.lose_every = 0
        """Every so many answers one is swallowed; 0: none."""
        self.answers = 0
        self.silent = False
        """Connections stay open and nothing passes."""
        self.writers: set[asyncio.StreamWriter] = set()
        self.accepted = 0
        self.called = asyncio.Event()
        """Somebody has opened a connection since this was cleared."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.called.set()
        try:
            far_reader, far_writer = await self.connect()
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self.writers |= pair
        try:
            up = asyncio.create_task(self.pass_on(reader, far_writer, answers=False))
            down = asyncio.create_task(self.pass_on(far_reader, writer, answers=True))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            for task in (up, down):
                task.cancel()
            self.writers -= pair
            for one in pair:
                one.transport.abort()

    async def pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if self.silent:
                    continue
                self.answers += answers
                if answers and self.lose_every and self.answers % self.lose_every == 0:
                    self.swallow += 1
                if answers and self.swallow:
                    self.swallow -= 1
                    self.swallowed.set()
                    return
                target.write(data)
                await target.drain()

    def cut(self) -> None:
        """End every connection."""
        for writer in list(self.writers):
            writer.transport.abort()


# -- one store with what tests do to it


class Site(Protocol):
    """A store, its proxy and its switch."""

    proxy: Proxy
    address: str
    direct: str
    """Past the proxy."""
    token: str

    def open(self, patience_s: float = DEADLINE_S) -> Store: ...
    def key(self, name: str) -> str: ...
    async def stop(self) -> None: ...
    async def start(self) -> None: ...
    def let_leases_end(self) -> None:
        """Leases that are not refreshed end from now on; wait for it by a watch."""

    def a_little_later(self) -> None:
        """Part of a second has passed, where the store's clock is the test's; any other goes by itself."""

    async def compact(self) -> None:
        """Older changes are not kept any more."""


class EmbeddedSite:
    """A server that restarts from its own snapshot, with a clock that tests move."""

    token = "a token"

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        self.proxy = proxy
        self.now = 1000.0
        self.path = folder / "store.sock"
        self.address, self.direct = f"unix:{folder / 'proxy.sock'}", f"unix:{self.path}"
        self.server: EmbeddedServer | None = None
        self.snapshot: bytes | None = None

    def clock(self) -> float:
        return self.now

    def open(self, patience_s: float = DEADLINE_S) -> Store:
        return EmbeddedStore(self.address, token=self.token, patience_s=patience_s, beat_s=0.2)

    def key(self, name: str) -> str:
        return f"test/{name}"

    async def start(self) -> None:
        data = Data(time.time_ns() // 1000, history=HISTORY)
        self.server = EmbeddedServer(token=self.token, clock=self.clock, snapshot=self.snapshot, data=data)
        await self.server.listen_unix(self.path)

    async def stop(self) -> None:
        if self.server is not None:
            self.snapshot = self.server.snapshot()
            await self.server.close()
            self.server = None

    def let_leases_end(self) -> None:
        self.pass_time(1000.0)

    def a_little_later(self) -> None:
        self.pass_time(0.2)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        assert self.server is not None
        self.server.tick()

    async def compact(self) -> None:
        async with EmbeddedStore(self.direct, token=self.token) as store:
            for _ in range(HISTORY + 1):
                await store.put("other/key", b"")


class EtcdSite:
    """The shared etcd, under a prefix of this test."""

    token = ""

    def __init__(self, member: EtcdMember, proxy: Proxy, port: int, prefix: str) -> None:
        self.member, self.proxy, self.prefix = member, proxy, prefix
        self.address, self.direct = f"etcd://127.0.0.1:{port}", f"etcd://127.0.0.1:{member.port}"

    def open(self, patience_s: float = DEADLINE_S) -> Store:
        return EtcdStore(self.address, patience_s=patience_s, watch_idle_s=1.0)

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    async def start(self) -> None:
        self.member.start()
        await self.member.until_ready()

    async def stop(self) -> None:
        await asyncio.to_thread(self.member.stop)

    def let_leases_end(self) -> None:
        """They end by themselves."""

    def a_little_later(self) -> None:
        """Its clock goes by itself."""

    async def compact(self) -> None:
        async with EtcdStore(self.direct) as store:
            revision = await store.put("other/key", b"")
        async with httpx.AsyncClient(base_url=self.member.url) as http:
            (await http.post("/v3/kv/compaction", json={"revision": revision})).raise_for_status()


@asynccontextmanager
async def embedded_site(folder: Path) -> AsyncIterator[Site]:
    proxy = Proxy(lambda: asyncio.open_unix_connection(str(folder / "store.sock")))
    site = EmbeddedSite(folder, proxy)
    await site.start()
    listener = await asyncio.start_unix_server(proxy.serve, str(folder / "proxy.sock"))
    try:
        yield site
    finally:
        listener.close()
        proxy.cut()
        await site.stop()


@asynccontextmanager
async def etcd_site(member: EtcdMember, prefix: str) -> AsyncIterator[Site]:
    proxy = Proxy(lambda: asyncio.open_connection("127.0.0.1", member.port))
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    site = EtcdSite(member, proxy, listener.sockets[0].getsockname()[1], prefix)
    try:
        yield site
    finally:
        listener.close()
        proxy.cut()
        if member.process is None:
            await site.start()


SiteMaker = Callable[[], AbstractAsyncContextManager[Site]]


def run(scenario: Callable[[Any, Any], Coroutine[Any, Any, None]], site: SiteMaker) -> None:
    """A scenario on a fresh site with one client, within a deadline."""

    async def main() -> None:
        async with asyncio.timeout(3 * DEADLINE_S), site() as s, s.open() as store:
            await scenario(s, store)

    asyncio.run(main())


async def take(changes: AsyncGenerator[Change, None], count: int) -> list[Change]:
    """The next changes, within a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(changes) for _ in range(count)]
