"""Parts of an agent, each around real files, processes and a real store, when something goes at the worst moment."""

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from melodeon.coord import agent as agent_module
from melodeon.coord import wire
from melodeon.coord.agent import Agent
from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.agent_events import Events
from melodeon.coord.agent_links import Uplink, Whereabouts
from melodeon.coord.agent_master import MasterRunner
from melodeon.coord.agent_state import AgentState
from melodeon.coord.agent_workers import Workers
from melodeon.coord.embedded import EmbeddedStore
from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.lines import Line
from melodeon.coord.marks import write_mark
from melodeon.coord.messages import Notice, Orders, Report, WorkerOrder
from melodeon.coord.store import Change, Fence, Fenced, Listing, Refused, StoreUnreachable
from tests.coord.agent_config import make_config

LINES = msgspec.msgpack.Decoder(Line)


class Troubled(EmbeddedStore):
    """A store that does one thing wrong when a test says so."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._listed: dict[str, asyncio.Event] = {}
        self.refused, self.refusing = 0, asyncio.Condition()

    ending = 0
    """This lease ends right after the next listing."""
    lost_puts = 0
    """So many writes are not answered."""
    lost_listings = 0
    """So many listings are not answered."""
    has_no_room_for = ""
    """`lease` or `state`."""
    refuses_watches = False

    async def list(self, prefix: str) -> Listing:
        if self.lost_listings:
            self.lost_listings -= 1
            raise StoreUnreachable("nobody has answered")
        listing = await super().list(prefix)
        self._listed.setdefault(prefix, asyncio.Event()).set()
        lease, self.ending = self.ending, 0
        if lease:
            await self.revoke(lease)
        return listing

    async def listed(self, prefix: str) -> None:
        """Until somebody has looked there."""
        await self._listed.setdefault(prefix, asyncio.Event()).wait()

    async def put(self, key: str, value: bytes, **conditions: object) -> int:
        if self.lost_puts:
            self.lost_puts -= 1
            raise StoreUnreachable("nobody has answered")
        if self.has_no_room_for and key.endswith(f"/{self.has_no_room_for}"):
            await self._refuse()
        return await super().put(key, value, **conditions)  # type: ignore[arg-type]

    async def grant(self, ttl_s: float) -> int:
        if self.has_no_room_for == "lease":
            await self._refuse()
        return await super().grant(ttl_s)

    async def _refuse(self) -> None:
        async with self.refusing:
            self.refused += 1
            self.refusing.notify_all()
        raise Refused("there is no room")

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        if self.refuses_watches:
            raise Refused("no watches here")
        async with aclosing(super().watch(prefix, after)) as changes:
            async for change in changes:
                yield change


@asynccontextmanager
async def a_store(folder: Path) -> AsyncIterator[Troubled]:
    async with (
        asyncio.timeout(20),
        EmbeddedServer() as server,
        Troubled(await server.listen_unix(folder / "s")) as store,
    ):
        yield store


async def make_runner(config: AgentConfig, store: Troubled, events: Events) -> MasterRunner:
    fence = Fence(config.prefix + "master", await store.put(config.prefix + "master", b""))
    return MasterRunner(config, store, fence, events, lambda _agent, _orders: None)


# -- the master's term --


def test_an_agent_that_is_lost_between_two_looks_at_the_list_is_missed(tmp_path: Path) -> None:
    async def main() -> None:
        config, events = make_config(tmp_path), Events(tmp_path / "events.jsonl")
        near, far = socket.socketpair()
        reader, listener = await asyncio.open_connection(sock=near)
        _, writer = await asyncio.open_connection(sock=far)
        events.watch(writer)
        async with a_store(tmp_path) as store:
            lease = await store.grant(60)
            await store.put(config.prefix + "agents/b", b"", lease=lease)
            runner = await make_runner(config, store, events)
            runner.on_report(Report(agent="b", incarnation="1", number=1, host="h", slots=1))
            store.ending = lease
            running = asyncio.create_task(runner.run())
            kinds = []
            while "agent_lost" not in kinds:
                line = await wire.read_frame(reader, LINES)
                assert line is not None
                kinds.append(json.loads(line.text)["kind"])
            assert kinds[:2] == ["master", "agent_joined"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        for end in (listener, writer):
            end.close()
            await end.wait_closed()
        events.close()

    asyncio.run(main())


def test_a_master_that_cannot_watch_its_agents_gives_its_term_up(tmp_path: Path) -> None:
    async def main() -> None:
        config, events = make_config(tmp_path), Events(tmp_path / "events.jsonl")
        async with a_store(tmp_path) as store:
            store.refuses_watches = True
            with pytest.raises(Refused, match="no watches"):
                await (await make_runner(config, store, events)).run()
            assert not [task for task in asyncio.all_tasks() if "MasterRunner" in repr(task)]
        events.close()

    asyncio.run(main())


def test_a_master_whose_term_is_over_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        config, events = make_config(tmp_path), Events(tmp_path / "events.jsonl")
        async with a_store(tmp_path) as store:
            runner = await make_runner(config, store, events)
            await store.delete(config.prefix + "master")
            with pytest.raises(Fenced):
                await runner.run()
        events.close()

    asyncio.run(main())
    assert (tmp_path / "events.jsonl").read_text() == ""


# -- being known --


def test_an_agent_whose_lease_ended_registers_again_though_the_first_try_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        async with a_store(tmp_path) as store:
            agent = Agent(config, store)
            await agent._downlinks.open("127.0.0.1")
            await agent._register()
            listing = await store.list(config.prefix + "agents/")
            await store.revoke(agent._lease)
            store.lost_puts = 1
            keeping = asyncio.create_task(agent._keep_lease())
            async with aclosing(store.watch(config.prefix + "agents/", listing.revision)) as changes:
                assert (await anext(changes)).entry is None
                assert (await anext(changes)).entry is not None
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await agent._downlinks.close()
            agent._events.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({"store": "unix:s", "lifeline_fd": 0}, True),
        ({"store": "tcp:h:1", "lifeline_fd": 0}, True),
        ({"store": "unix:s"}, False),
        ({"store": "tcp:h:1", "lifeline_fd": 0, "guest": True}, False),
        ({"store": "etcd://h:1", "lifeline_fd": 0}, False),
    ],
)
def test_an_agent_waits_for_a_store_whose_host_lives_and_for_no_other(
    changes: dict[str, object], waits: bool, tmp_path: Path
) -> None:
    called = asyncio.Event()

    async def be_called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read_payload(reader)
        called.set()
        writer.close()

    async def main() -> None:
        config = msgspec.structs.replace(make_config(tmp_path), **changes)
        async with a_store(tmp_path) as store, await asyncio.start_server(be_called, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await store.put(config.prefix + "master", msgspec.json.encode(Whereabouts(agent="b", address=address)))
            agent, report = Agent(config, store), Report(agent="a", incarnation="1", number=1, host="h", slots=1)
            agent._uplink = Uplink(
                store, config.prefix + "master", agent="a", token="", report=lambda: report, on_orders=lambda _: None
            )
            store.lost_listings = 3
            following = asyncio.create_task(agent._follow_master())
            calling = asyncio.create_task(called.wait())
            await asyncio.wait([following, calling], return_when=asyncio.FIRST_COMPLETED)
            assert (called.is_set(), following.done()) == (waits, not waits)
            if not waits:
                assert isinstance(following.exception(), StoreUnreachable)
            for task in (following, calling):
                task.cancel()
            await asyncio.gather(following, calling, return_exceptions=True)
            agent._events.close()

    asyncio.run(main())


def test_a_guest_that_was_away_when_the_job_ended_does_not_begin_it_anew(tmp_path: Path) -> None:
    async def main() -> None:
        config = msgspec.structs.replace(make_config(tmp_path), guest=True)
        master, state = config.prefix + "master", config.prefix + "state"
        async with a_store(tmp_path) as store:
            for key in (master, state):
                await store.put(key, b"another's")
            agent = Agent(config, store)
            agent._uplink = Uplink(store, master, agent="a", token="", report=lambda: report, on_orders=lambda _: None)
            agent._workers = Workers(
                config, AgentState(agent="a", host="h", slots=1, incarnation=1), on_news=agent._on_news
            )
            report = agent._workers.state.report()
            process = subprocess.Popen(["sleep", "60"], start_new_session=True)
            agent._workers.on_orders(
                Orders(fence=1, number=1, agent="a", workers=(WorkerOrder(worker=0, slot=0, notice=Notice(number=1)),))
            )
            write_mark(config.node_dir / "worker-0.pid", process.pid)
            agent._workers._on_unsure(0)
            campaigning = asyncio.create_task(agent._campaign())
            await store.listed(master)  # and so it waits its turn
            for key in (state, master):
                await store.delete(key)
            await asyncio.gather(campaigning, asyncio.to_thread(process.wait))
            assert agent._over.is_set()
            assert not await store.list(config.prefix)
            agent._events.close()
        assert (tmp_path / "events.jsonl").read_text() == ""

    asyncio.run(main())


def test_a_guest_waits_for_a_job_to_begin_and_begins_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "BEGIN_S", 0.1)

    async def main() -> None:
        config = msgspec.structs.replace(make_config(tmp_path), guest=True)
        async with a_store(tmp_path) as store:
            before = (await store.list("")).revision
            agent = Agent(config, store)
            await agent._campaign()
            assert (await store.list("")).revision == before
            agent._events.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["lease", "state"])
def test_a_store_that_refuses_is_asked_now_and_then(what: str, tmp_path: Path) -> None:
    """As an etcd without room does, at once: all agents would keep it busy, and their processors."""

    async def main() -> None:
        config = make_config(tmp_path)
        async with a_store(tmp_path) as store:
            store.has_no_room_for = what
            agent, begun = Agent(config, store), asyncio.get_running_loop().time()
            agent._uplink = Uplink(store, "", agent="a", token="", report=Mock(), on_orders=Mock())
            campaigning = asyncio.create_task(agent._campaign())
            async with store.refusing:
                await store.refusing.wait_for(lambda: store.refused == 3)
            campaigning.cancel()
            await asyncio.gather(campaigning, return_exceptions=True)
            assert asyncio.get_running_loop().time() - begun > 2 * config.ttl_s / 3
            agent._events.close()

    asyncio.run(main())
