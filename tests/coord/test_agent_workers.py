"""An agent's nursery and its workers, around real processes, when something goes at the worst moment."""

import asyncio
import errno
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import msgspec
import pytest

from melodeon.coord import agent_nursery, agent_workers, wire
from melodeon.coord.agent_nursery import Nursery
from melodeon.coord.agent_state import AgentState
from melodeon.coord.agent_workers import Workers
from melodeon.coord.lastwords import write_last_words
from melodeon.coord.lines import Brood, Start
from melodeon.coord.marks import read_mark, write_mark
from melodeon.coord.messages import Notice, Orders, Phase, Status, WorkerOrder
from melodeon.coord.sprout import Sprouted
from tests.coord.agent_config import make_config

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
