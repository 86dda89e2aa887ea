"""The log as it grows: nobody misses a line, nobody gets one twice, and slow readers hold up nobody."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from melodeon.control.api.stream import KEPT, PAGE, EventStream, Hub
from melodeon.core.errors import Unreachable
from melodeon.core.service import EventInfo
from tests.control.api.serving import TOKEN, Serving

STREAM = "/api/v1/stream"


# --- over a real connection ---


def lines(response: httpx.Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line[5:])


def test_events_come_as_they_happen_and_go_on_after_a_break(service: Serving) -> None:
    with service.client() as client:
        before = client.get("/api/v1/events", params={"limit": 1000}).json()[-1]["seq"]
        with client.stream("GET", STREAM) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            job = client.post("/api/v1/jobs", json=service.job("one")).json()["job"]["id"]
            first = next(lines(response))
            assert first["seq"] == before + 1
            assert first["job"] == job
        client.post(f"/api/v1/jobs/{job}/cancel")
        known = client.get("/api/v1/events", params={"after": before}).json()
        with client.stream("GET", STREAM, headers={"Last-Event-ID": str(first["seq"])}) as response:
            rest = [event for _, event in zip(known[1:], lines(response), strict=False)]
        assert [first, *rest] == known


def test_one_job_alone_can_be_followed(service: Serving) -> None:
    with service.client() as client:
        with client.stream("GET", STREAM, params={"job": "other-99"}) as response:
            client.post("/api/v1/jobs", json=service.job("noise"))
            name = client.post("/api/v1/jobs", json=service.job("heard")).json()["job"]["id"]
            assert response.status_code == 200
        with client.stream("GET", STREAM, params={"job": name, "after": 0}) as response:
            assert next(lines(response))["job"] == name


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 18, "²"])
def test_a_mark_that_is_no_number_is_refused(service: Serving, last: str) -> None:
    with service.client() as client:
        assert client.get(STREAM, headers={"Last-Event-ID": last.encode()}).status_code == 422


def test_a_mark_of_another_log_begins_now(service: Serving) -> None:
    with service.client() as client, client.stream("GET", STREAM, headers={"Last-Event-ID": "999999"}) as response:
        name = client.post("/api/v1/jobs", json=service.job("now")).json()["job"]["id"]
        assert next(lines(response))["job"] == name


async def left_by_all(hub: Hub) -> None:
    """Wait until the last reader has left."""
    leave, empty = hub.leave, asyncio.Event()

    def leaving() -> None:
        leave()
        if not hub.num_readers:
            empty.set()

    hub.leave = leaving  # type: ignore[method-assign]
    if hub.num_readers:
        await asyncio.wait_for(empty.wait(), 20)
    hub.leave = leave  # type: ignore[method-assign]


def test_a_hundred_readers_that_do_not_read_hold_up_nobody(service: Serving) -> None:
    request = f"GET {STREAM}?after=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    sockets = []
    try:
        for _ in range(100):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(20)
            line.connect(("127.0.0.1", service.port))
            line.sendall(request)
            assert line.recv(12).startswith(b"HTTP/1.1 200")
            sockets.append(line)
        with service.client() as client:
            for number in range(20):
                made = client.post("/api/v1/jobs", json=service.job(f"busy-{number}"))
                assert made.status_code == 201
                client.post(f"/api/v1/jobs/{made.json()['job']['id']}/cancel")
            assert "melodeon_stream_readers 100.0" in client.get("/metrics").text
    finally:
        for line in sockets:
            line.close()
    service.do(left_by_all(service.hub))
    assert service.hub.num_readers == 0


# --- readers that stall, by hand ---


@dataclass
class Log:
    """A controller as far as a hub sees it: a log in memory."""

    events_: list[EventInfo] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    pages: int = 0

    @property
    def engine(self) -> "Log":
        return self

    @property
    def seq(self) -> int:
        return len(self.events_)

    def events(self, after: int, job: str | None, limit: int) -> tuple[EventInfo, ...]:
        self.pages += 1
        return tuple(event for event in self.events_[after:] if job in (None, event.job))[:limit]

    async def subscribe(self, after: int) -> AsyncIterator[EventInfo]:
        while True:
            while after < self.seq:
                after += 1
                yield self.events_[after - 1]
            async with self.grown:
                while self.seq <= after:
                    await self.grown.wait()

    async def grow(self, count: int) -> None:
        async with self.grown:
            for _ in range(count):
                number = self.seq + 1
                self.events_.append(EventInfo(seq=number, at=0.0, kind="k", job=f"j-{number % 2}"))
            self.grown.notify_all()


class Reader:
    """The other end of a connection: takes what it is sent while its door is open."""

    def __init__(self, log: Log, hub: Hub, after: int | None = None, job: str | None = None) -> None:
        self.open, self.left, self.took = asyncio.Event(), asyncio.Event(), asyncio.Condition()
        self.open.set()
        self.body = b""
        self.ended = False
        stream = EventStream(hub, log, after, job)  # type: ignore[arg-type]
        self.task = asyncio.ensure_future(stream({"type": "http"}, self.receive, self.send))

    async def receive(self) -> dict[str, object]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, object]) -> None:
        await self.open.wait()
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        self.body += body
        self.ended = message["type"] == "http.response.body" and not message["more_body"]
        async with self.took:
            self.took.notify_all()

    @property
    def seqs(self) -> list[int]:
        return [json.loads(line[5:])["seq"] for line in self.body.decode().splitlines() if line.startswith("data:")]

    async def until(self, condition: Callable[["Reader"], bool], timeout_s: float = 10.0) -> None:
        """Wait until what was taken is enough."""
        async with asyncio.timeout(timeout_s), self.took:
            await self.took.wait_for(lambda: condition(self))


def begun(reader: Reader) -> bool:
    return b"retry" in reader.body


def run(test: object) -> None:
    asyncio.run(test())  # type: ignore[operator]


def test_a_reader_far_behind_is_given_the_past_page_by_page() -> None:
    async def test() -> None:
        log = Log()
        await log.grow(3 * PAGE + 7)
        hub = Hub(log)  # type: ignore[arg-type]
        all_, odd = Reader(log, hub, after=0), Reader(log, hub, after=0, job="j-1")
        await all_.until(lambda reader: len(reader.seqs) == 3 * PAGE + 7)
        await log.grow(5)
        await all_.until(lambda reader: reader.seqs == list(range(1, 3 * PAGE + 13)))
        await odd.until(lambda reader: reader.seqs == list(range(1, 3 * PAGE + 13, 2)))
        hub.close()
        await asyncio.gather(all_.task, odd.task)
        assert all_.ended

    run(test)


def test_a_reader_that_the_ring_has_overtaken_is_cut_and_misses_nothing_when_it_returns() -> None:
    async def test() -> None:
        log = Log()
        hub = Hub(log, kept=10)  # type: ignore[arg-type]
        slow, quick = Reader(log, hub), Reader(log, hub)
        await slow.until(begun)
        await log.grow(1)
        await slow.until(lambda reader: reader.seqs == [1])
        slow.open.clear()
        for _ in range(10):
            await log.grow(5)
            await quick.until(lambda reader: reader.seqs[-1] == log.seq)
        slow.open.set()
        await asyncio.wait_for(slow.task, 5)
        assert slow.ended
        assert slow.seqs == list(range(1, slow.seqs[-1] + 1))
        assert slow.seqs[-1] < log.seq
        again = Reader(log, hub, after=slow.seqs[-1])
        await again.until(lambda reader: reader.seqs == list(range(slow.seqs[-1] + 1, log.seq + 1)))
        assert quick.seqs == list(range(1, log.seq + 1))
        hub.close()
        await asyncio.gather(quick.task, again.task)
        assert hub.num_readers == 0

    run(test)


def test_a_reader_that_takes_nothing_is_cut() -> None:
    async def test() -> None:
        log = Log()
        hub = Hub(log, stall_s=0.05)  # type: ignore[arg-type]
        stuck = Reader(log, hub)
        await stuck.until(begun)
        stuck.open.clear()
        await log.grow(1)
        await asyncio.wait_for(stuck.task, 5)
        assert not stuck.ended
        assert hub.num_readers == 0

    run(test)


def test_a_reader_that_leaves_is_forgotten() -> None:
    async def test() -> None:
        hub = Hub(log := Log())  # type: ignore[arg-type]
        reader = Reader(log, hub)
        await reader.until(begun)
        assert hub.num_readers == 1
        reader.left.set()
        await asyncio.wait_for(reader.task, 5)
        assert hub.num_readers == 0
        hub.close()
        with pytest.raises(Unreachable):
            hub.enter()

    run(test)


def test_a_quiet_stream_says_that_it_is_there() -> None:
    async def test() -> None:
        hub = Hub(log := Log(), beat_s=0.02)  # type: ignore[arg-type]
        reader = Reader(log, hub)
        await reader.until(lambda reader: reader.body.count(b": still here") >= 3)
        hub.close()
        await reader.task
        assert reader.body.count(b": still here") >= 3
        assert not reader.seqs

    run(test)


def test_a_ring_is_bounded() -> None:
    async def test() -> None:
        hub = Hub(log := Log())  # type: ignore[arg-type]
        reader = Reader(log, hub)
        await reader.until(begun)
        for _ in range(5):
            await log.grow(KEPT)
            await reader.until(lambda reader: reader.ended or reader.seqs[-1:] == [log.seq])
            assert len(hub._lines) < 2 * KEPT
        hub.close()
        await reader.task

    run(test)
