"""Between agents: each one calls the agent that is the master's, and is called while it is that agent itself.

Who the master is stands in the store. A caller shows the token that all agents of a job share, then sends reports and
wishes, and gets orders and answers. When a connection breaks it calls again; everything is whole documents, so what was
lost on the way comes with the next one.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable

import msgspec

from melodeon.coord import wire
from melodeon.coord.agent_master import MasterRunner
from melodeon.coord.lines import Hello
from melodeon.coord.messages import Answer, Ask, Orders, Report
from melodeon.coord.store import Store, follow

RETRY_S = 0.1
HELLO_S = 5.0
HELLO_BYTES = 4096
"""A stranger's first frame is not allowed more."""

_CALLER = msgspec.msgpack.Decoder(Report | Ask)
_CALLED = msgspec.msgpack.Decoder(Orders | Answer)
_HELLO = msgspec.msgpack.Decoder(Hello)


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the master's key."""

    agent: str
    address: str
    """`HOST:PORT`"""


class Uplink:
    """To the master, wherever it is, this agent included."""

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        agent: str,
        token: str,
        report: Callable[[], Report],
        on_orders: Callable[[Orders], None],
    ) -> None:
        self._store, self._key, self._agent, self._token = store, key, agent, token
        self._report, self._on_orders = report, on_orders
        self._writer: asyncio.StreamWriter | None = None
        self._local: MasterRunner | None = None
        self._asks: dict[str, tuple[Ask, set[asyncio.StreamWriter]]] = {}
        """What is not answered yet, and the connections that wait for it."""

    def be_local(self, runner: MasterRunner | None) -> None:
        """The master runs in this process now (or not any more)."""
        self._local = runner
        self.resend()

    def resend(self) -> None:
        """Say everything again: the report and the wishes that are not answered."""
        self.send_report()
        for ask, _ in self._asks.values():
            self._send(ask)

    def send_report(self) -> None:
        """Tell the master how things are."""
        if self._local is not None or self._writer is not None:
            self._send(self._report())

    def ask(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        """Pass a person's wish on; it is said again until it is answered."""
        self._asks.setdefault(ask.id, (ask, set()))[1].add(writer)
        self._send(ask)

    def hang_up(self, writer: asyncio.StreamWriter) -> None:
        """That person does not wait any more."""
        for ask, waiting in list(self._asks.values()):
            waiting.discard(writer)
            if not waiting:
                del self._asks[ask.id]

    async def run(self) -> None:
        """Follow the master's key, and be connected with whoever it names."""
        calling: asyncio.Task[None] | None = None
        try:
            async for change in follow(self._store, self._key):
                if change.key != self._key:
                    continue
                if calling is not None:
                    await end_task(calling)
                    calling = None
                if change.entry is not None:
                    where = msgspec.json.decode(change.entry.value, type=Whereabouts)
                    if where.agent != self._agent:
                        calling = asyncio.create_task(self._call(where.address))
        finally:
            if calling is not None:
                await end_task(calling)

    async def _call(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        while True:
            with contextlib.suppress(OSError, wire.FrameError):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(wire.pack(Hello(agent=self._agent, token=self._token)))
                    self._writer = writer
                    self.resend()
                    while (message := await wire.read_frame(reader, _CALLED)) is not None:
                        if isinstance(message, Orders):
                            self._on_orders(message)
                        else:
                            self._answered(message)
                finally:
                    self._writer = None
                    writer.close()
            await asyncio.sleep(RETRY_S)  # the store will say if it is somebody else's turn; until then, call again

    def _send(self, message: Report | Ask) -> None:
        if self._local is not None:
            if isinstance(message, Report):
                self._local.on_report(message)
            else:
                self._local.on_ask(message, self, self._answered)
        elif self._writer is not None:
            self._writer.write(wire.pack(message))

    def _answered(self, answer: Answer) -> None:
        _, waiting = self._asks.pop(answer.id, (None, set()))
        for writer in waiting:
            writer.write(wire.pack(answer))


class Downlinks:
    """From the other agents, while the master runs here; at other times callers are sent away."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._runner: MasterRunner | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self, host: str) -> None:
        """Listen on a free port of that address."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def be_local(self, runner: MasterRunner | None) -> None:
        """The master runs in this process now (or not any more)."""
        self._runner = runner
        if runner is None:
            for writer in self._writers.values():
                writer.close()

    def send(self, agent: str, orders: Orders) -> None:
        """Send orders, if that agent is on the line; if not, its next report asks for them."""
        writer = self._writers.get(agent)
        if writer is not None:
            writer.write(wire.pack(orders))

    async def close(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent = ""
        try:
            async with asyncio.timeout(HELLO_S):
                payload = await wire.read_payload(reader, HELLO_BYTES)
            hello = None if payload is None else wire.unpack(payload, _HELLO)
            if hello is None or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
                return
            agent = hello.agent
            self._writers[agent] = writer
            while (message := await wire.read_frame(reader, _CALLER)) is not None:
                if self._runner is None:
                    return
                if isinstance(message, Report):
                    self._runner.on_report(message)
                else:
                    self._runner.on_ask(message, writer, lambda answer: writer.write(wire.pack(answer)))
        except (OSError, TimeoutError, wire.FrameError):
            pass  # it will call again
        finally:
            if self._writers.get(agent) is writer:
                del self._writers[agent]
            writer.close()


async def end_task(task: "asyncio.Task[None]") -> None:
    """End a task. Unlike awaiting it, this tells its cancellation from one of the caller."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
