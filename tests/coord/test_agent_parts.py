"""Parts of an agent, each around real files, processes and a real store, when something goes at the worst moment."""

import asyncio
import errno
import json
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import msgspec
import pytest

from melodeon.coord import agent as agent_module
from melodeon.coord import agent_nursery, agent_workers, wire
from melodeon.coord.agent import Agent
from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.agent_events import Events
from melodeon.coord.agent_links import Uplink, Whereabouts
from melodeon.coord.agent_master import MasterRunner
from melodeon.coord.agent_nursery import Nursery
from melodeon.coord.agent_state import AgentState
from melodeon.coord.agent_workers import Workers
from melodeon.coord.embedded import EmbeddedStore
from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.lastwords import write_last_words
from melodeon.coord.lines import Brood, Line, Start
from melodeon.coord.marks import read_mark, write_mark
from melodeon.coord.master_state import JobConfig
from melodeon.coord.messages import Notice, Orders, Phase, Report, Status, WorkerOrder
from melodeon.coord.sprout import Sprouted
from melodeon.coord.store import Change, Fence, Fenced, Listing, Refused, StoreUnreachable

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


def make_config(folder: Path) -> AgentConfig:
    config = AgentConfig(
        job="j",
        run="r",
        agent="a",
        host="h",
        slots=1,
        run_dir=str(folder),
        socket=str(folder / "a.sock"),
        store="",
        argv=(),
        job_config=JobConfig(job="j"),
        ttl_s=0.6,
    )
    config.node_dir.mkdir(parents=True)
    return config


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


# -- processes that end while nobody looks --


def test_closing_a_nursery_that_has_just_ended_is_quiet(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        nursery = Nursery(config, on_brood=lambda _: None, on_unsure=lambda _: None, on_hopeless=lambda _: None)
        process = subprocess.Popen(["sleep", "60"])
        write_mark(config.node_dir / "nursery.pid", process.pid)
        nursery.open()
        process.kill()
        process.wait()
        await nursery.close()
        assert read_mark(config.node_dir / "nursery.pid") is None

    asyncio.run(main())


def test_a_nursery_that_calls_before_its_maker_has_answered_is_not_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        config = msgspec.structs.replace(make_config(tmp_path), zygote="any")
        made, stranger = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
        answer = asyncio.Event()

        async def late(*_: object) -> Sprouted:
            await answer.wait()
            return Sprouted(pid=made.pid)

        monkeypatch.setattr(agent_nursery, "sprout", late)
        heard: list[int] = []
        told = asyncio.Event()

        def on_brood(brood: Brood) -> None:
            heard.append(brood.pid)
            told.set()

        nursery = Nursery(config, on_brood=on_brood, on_unsure=lambda _: None, on_hopeless=lambda _: None)
        nursery.open()
        writer = cast("asyncio.StreamWriter", object())
        for process in (stranger, made):
            nursery.heard(Brood(pid=process.pid), writer)
        assert (heard, made.poll(), stranger.poll()) == ([], None, None)
        answer.set()
        await told.wait()
        assert (heard, made.poll()) == ([made.pid], None)
        assert stranger.wait(20) == -9
        await asyncio.gather(nursery.close(), asyncio.to_thread(made.wait))

    asyncio.run(main())


def test_a_nursery_that_calls_again_is_asked_again_for_whom_it_does_not_know(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_mark(config.node_dir / "nursery.pid", process.pid)
        nursery = Nursery(config, on_brood=lambda _: None, on_unsure=lambda _: None, on_hopeless=lambda _: None)
        nursery.open()
        first, second = Ear(), Ear()
        nursery.heard(Brood(pid=process.pid), cast("asyncio.StreamWriter", first))
        for worker in (1, 2):
            nursery.start(Start(worker=worker, argv=(), env={}, out="", err="", mark=""))
        nursery.hung_up(cast("asyncio.StreamWriter", first))  # it may have read one of them, both or neither
        nursery.heard(Brood(pid=process.pid, workers={1: 12345}), cast("asyncio.StreamWriter", second))
        assert [[order.worker for order in ear.heard] for ear in (first, second)] == [[1, 2], [2]]
        nursery.heard(Brood(pid=process.pid, workers={1: 12345}), cast("asyncio.StreamWriter", second))
        assert len(second.heard) == 1
        await asyncio.gather(nursery.close(), asyncio.to_thread(process.wait))

    asyncio.run(main())


def test_a_nursery_that_stands_still_is_ended_and_the_next_one_makes_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(agent_nursery, "time", SimpleNamespace(monotonic=lambda: now))

    async def main() -> None:
        nonlocal now
        config = make_config(tmp_path)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_mark(config.node_dir / "nursery.pid", process.pid)
        following = asyncio.Event()
        nursery = Nursery(config, on_brood=lambda _: None, on_unsure=lambda _: None, on_hopeless=lambda _: None)
        monkeypatch.setattr(nursery, "_launch", following.set)
        nursery.open()
        writer = cast("asyncio.StreamWriter", Ear())
        nursery.heard(Brood(pid=process.pid), writer)
        now += 100.0
        nursery.look(now)
        for worker in (1, 2):
            (tmp_path / str(worker)).touch()
            nursery.start(Start(worker=worker, argv=(), env={}, out="", err="", mark=str(tmp_path / str(worker))))
        now += 10.0
        nursery.heard(Brood(pid=process.pid, workers={1: 12345}), writer)
        now += 14.0
        nursery.look(now)
        assert (process.poll(), nursery.unmade) == (None, ())
        now += 2.0
        nursery.look(now)
        assert process.wait(20) == -signal.SIGKILL
        await asyncio.wait_for(following.wait(), 20)
        assert nursery.unmade == (2,)

    asyncio.run(main())


def test_a_nursery_for_which_there_is_no_room_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        config = msgspec.structs.replace(make_config(tmp_path), zygote="any")
        (config.node_dir / "nursery.log").mkdir(parents=True)
        said = asyncio.get_running_loop().create_future()
        nursery = Nursery(config, on_brood=lambda _: None, on_unsure=lambda _: None, on_hopeless=said.set_result)
        nursery.open()
        assert "cannot be started" in await asyncio.wait_for(said, 20)
        await nursery.close()

    asyncio.run(main())


def test_a_nursery_that_cannot_be_followed_by_another_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_mark(config.node_dir / "nursery.pid", process.pid)
        said = asyncio.get_running_loop().create_future()
        nursery = Nursery(config, on_brood=lambda _: None, on_unsure=lambda _: None, on_hopeless=said.set_result)
        nursery.open()
        with monkeypatch.context() as full:
            full.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no more processes")))
            process.kill()
            process.wait()
            assert "cannot be started: [Errno 11] no more processes" in await asyncio.wait_for(said, 20)
        await nursery.close()

    asyncio.run(main())


def test_who_runs_here_goes_on_though_no_nursery_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_mark(config.node_dir / "worker-0.pid", process.pid)
        now = time.monotonic()
        state = AgentState(agent="a", host="h", slots=2, incarnation=1, now=now, adopted={0: True, 1: True})
        workers = Workers(config, state, on_news=lambda _: None)
        with monkeypatch.context() as full:
            full.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no more processes")))
            workers.open()
        assert state.running == (0,)
        status = state.status_of(1)
        assert status is not None
        assert "cannot be started: [Errno 11] no more processes" in status.error
        await workers.close()
        assert process.wait(20) == -signal.SIGKILL

    asyncio.run(main())


def test_a_worker_that_ends_while_it_is_looked_for_is_told_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(["sleep", "60"])

    def read_too_late(path: Path) -> int | None:
        pid = read_mark(path)
        process.kill()
        process.wait()
        return pid

    async def main() -> None:
        config = make_config(tmp_path)
        state = AgentState(agent="a", host="h", slots=1, incarnation=1, adopted={0: True})
        write_mark(config.node_dir / "worker-0.pid", process.pid)
        news: list[bool] = []
        monkeypatch.setattr(agent_workers, "read_mark", read_too_late)
        Workers(config, state, on_news=news.append)._on_unsure(0)
        status = state.status_of(0)
        assert status is not None
        assert status.phase is Phase.GONE
        assert news == [True]

    asyncio.run(main())


@pytest.mark.parametrize(("left", "error"), [("too few", "too few"), ("", "worker 0 ended with exit code 2")])
def test_a_worker_that_is_seen_to_end_before_its_word_is_read_still_has_its_sentence(
    left: str, error: str, tmp_path: Path
) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        state = AgentState(agent="a", host="h", slots=1, incarnation=1, adopted={0: True})
        write_last_words(tmp_path, Status(worker=0, pid=1, number=2, phase=Phase.STARTING, error=left, exit_code=2))
        workers = Workers(config, state, on_news=lambda _: None)
        workers._on_brood(Brood(pid=1, ended={0: 2}))
        status = state.status_of(0)
        assert status is not None
        assert (status.phase, status.error, status.exit_code) == (Phase.GONE, error, 2)

    asyncio.run(main())


def test_a_worker_that_was_being_made_when_its_node_was_wanted_back_is_told_to_leave_too(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        state = AgentState(agent="a", host="h", slots=2, incarnation=1)
        workers = Workers(config, state, on_news=lambda _: None)
        orders = tuple(WorkerOrder(worker=worker, slot=worker, notice=Notice(number=1)) for worker in (0, 1))
        workers.on_orders(Orders(fence=1, number=1, agent="a", workers=orders))
        made, asked = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
        workers._on_brood(Brood(pid=1, workers={0: made.pid}))
        workers.give_back()
        assert await asyncio.to_thread(made.wait, 20) == -signal.SIGTERM
        workers._on_brood(Brood(pid=1, workers={1: asked.pid}))
        assert await asyncio.to_thread(asked.wait, 20) == -signal.SIGTERM
        async with asyncio.timeout(20):
            await workers.empty.wait()

    asyncio.run(main())


def test_a_worker_that_ends_just_when_its_node_is_wanted_back_keeps_nobody_from_leaving(tmp_path: Path) -> None:
    async def main() -> None:
        state = AgentState(agent="a", host="h", slots=2, incarnation=1, adopted={0: True, 1: True})
        workers = Workers(make_config(tmp_path), state, on_news=lambda _: None)
        ended, runs = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
        workers._on_brood(Brood(pid=1, workers={0: ended.pid, 1: runs.pid}))
        ended.kill()
        ended.wait()
        workers.give_back()
        assert await asyncio.to_thread(runs.wait, 20) == -signal.SIGTERM
        async with asyncio.timeout(20):
            await workers.empty.wait()

    asyncio.run(main())


class Ear:
    """The nursery's end of a connection."""

    def __init__(self) -> None:
        self.heard: list[Start] = []

    def write(self, data: bytes) -> None:
        """Orders for it."""
        self.heard += wire.Frames(Start).feed(data)


@pytest.mark.parametrize("speaks", [True, False])
def test_a_worker_has_its_time_to_speak_once_there_is_a_nursery_that_can_make_it(
    speaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(agent_workers, "time", SimpleNamespace(monotonic=lambda: now))

    async def main() -> None:
        nonlocal now
        config = make_config(tmp_path)
        importing = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_mark(config.node_dir / "nursery.pid", importing.pid)
        state = AgentState(agent="a", host="h", slots=1, incarnation=1)
        workers = Workers(config, state, on_news=lambda _: None)
        workers.open()
        order = WorkerOrder(worker=0, slot=0, notice=Notice(number=1))
        workers.on_orders(Orders(fence=1, number=1, agent="a", workers=(order,)))

        def look_for(seconds: float) -> Phase:
            nonlocal now
            end = now + seconds
            while now < end:
                now += 1.0
                workers._pulse(now)
            status = state.status_of(0)
            assert status is not None
            return status.phase

        try:
            assert look_for(200) is Phase.STARTING
            if speaks:
                workers.nursery.heard(Brood(pid=importing.pid), cast("asyncio.StreamWriter", Ear()))
            assert look_for(59) is Phase.STARTING
            assert look_for(2 if speaks else 101) is Phase.GONE
        finally:
            await asyncio.gather(workers.close(), asyncio.to_thread(importing.wait))

    asyncio.run(main())
