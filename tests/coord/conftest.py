"""Real stores for the tests: an embedded server in the test's own event loop, etcd as a process, each behind a proxy.

A `Site` is one store with what tests do to it: cut its connections, swallow an answer, stop it, start it again.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from melodeon.coord.embedded import EmbeddedStore
from melodeon.coord.embedded_data import Data
from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.etcd import EtcdStore
from melodeon.coord.store import Store

HISTORY = 64
"""Changes that the embedded store of a test keeps."""
DEADLINE_S = 20.0
"""No test waits longer for anything; the machine is shared."""


# -- etcd as a process


def find_etcd() -> str:
    """The binary, from Debian's etcd-server if it has to be installed."""
    if shutil.which("etcd") is None and shutil.which("apt-get") is not None:
        command = ["apt-get", "install", "-y", "--no-install-recommends", "etcd-server"]
        environment = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        subprocess.run(["apt-get", "update"], env=environment, capture_output=True, timeout=100)
        subprocess.run(command, env=environment, capture_output=True, timeout=100)
    found = shutil.which("etcd")
    assert found is not None, "these tests need etcd, and it could not be installed: apt-get install etcd-server"
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class EtcdMember:
    """One member of an etcd cluster; its data outlives a stop."""

    def __init__(self, folder: Path, name: str, ports: dict[str, tuple[int, int]]) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[name])
        self.port, self.url, self.log = ports[name][0], client, folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.command = [find_etcd(), "--name", name, "--data-dir", str(folder / name)]
        self.command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self.command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        cluster = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, (_, peer) in ports.items())
        self.command += ["--initial-cluster", cluster, "--initial-cluster-token", folder.name]
        # Leases of one second, and another leader soon.
        self.command += ["--heartbeat-interval", "50", "--election-timeout", "250"]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    async def until_healthy(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(self.healthy):
                assert self.process is not None
                assert self.process.poll() is None, f"etcd ended: {self.log.read_text()[-2000:]}"
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None


class EtcdCluster:
    """Some members, started together."""

    def __init__(self, folder: Path, size: int) -> None:
        numbers = free_ports(2 * size)
        ports = {f"m{index}": (numbers[2 * index], numbers[2 * index + 1]) for index in range(size)}
        self.members = [EtcdMember(folder, name, ports) for name in ports]

    async def start(self) -> None:
        for member in self.members:
            member.start()
        for member in self.members:
            await member.until_healthy()

    def stop(self) -> None:
        for member in self.members:
            member.stop()


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """One etcd for all tests of this process; each test uses keys of its own."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), 1)
    try:
        asyncio.run(cluster.start())
        yield cluster.members[0]
    finally:
        cluster.stop()


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members of its own for a test."""
    cluster = EtcdCluster(tmp_path, 3)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.stop()


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

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
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

    async def a_little_later(self) -> None:
        """Part of a second has passed."""

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

    async def a_little_later(self) -> None:
        self.pass_time(0.2)
        await asyncio.sleep(0)

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
        await self.member.until_healthy()

    async def stop(self) -> None:
        await asyncio.to_thread(self.member.stop)

    def let_leases_end(self) -> None:
        """They end by themselves."""

    async def a_little_later(self) -> None:
        await asyncio.sleep(0.1)

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


@pytest.fixture(params=["embedded", "etcd"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> SiteMaker:
    """Makes the site inside the test's event loop: `async with site() as s`."""
    if request.param == "embedded":
        return lambda: embedded_site(tmp_path)
    member = request.getfixturevalue("etcd_member")
    return lambda: etcd_site(member, request.node.name)
