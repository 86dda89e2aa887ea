"""What only the embedded store has: its door, its snapshots, its clock, its bounds."""

import asyncio
import signal
import statistics
import struct
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.coord.embedded import EmbeddedStore
from melodeon.coord.embedded_data import Data
from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.embedded_values import FROM_SERVER, Get, Hello, Ping, Put, Refusal, Reply, Request, Welcome
from melodeon.coord.store import Compacted, Conflict, Entry, Fence, Fenced, LeaseLost, Refused, StoreUnreachable
from melodeon.coord.wire import MAX_FRAME, FrameError, pack, read_frame
from melodeon.core.errors import UsageError

TOKEN = "a token"
DEEP = b"\x82\xa4type\xa5hello\xa4more" + 60_000 * b"\x91" + b"\x00"
"""A hello with more than there should be: lists in lists in lists."""


def run(scenario, path: Path):
    async def main():
        async with asyncio.timeout(60), EmbeddedServer(token=TOKEN) as server:
            address = await server.listen_unix(path / "s")
            async with EmbeddedStore(address, token=TOKEN) as store:
                await scenario(server, store)

    asyncio.run(main())


async def call(store: EmbeddedStore):
    return await asyncio.open_unix_connection(store.address.removeprefix("unix:"))


# -- the door


def test_a_unix_socket_is_for_its_user_alone_and_goes_with_the_server(tmp_path):
    async def scenario(server, store):
        await store.put("k", b"")
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600

    run(scenario, tmp_path)
    assert not (tmp_path / "s").exists()


def test_tcp_is_on_loopback_and_needs_a_token(tmp_path):
    async def main():
        async with EmbeddedServer(token=TOKEN) as server:
            address = await server.listen_tcp()
            assert address.startswith("tcp:127.0.0.1:")
            unix = await server.listen_unix(tmp_path / "s")
            async with EmbeddedStore(address, token=TOKEN) as one, EmbeddedStore(unix, token=TOKEN) as two:
                revision = await one.put("k", b"v")
                assert await two.get("k") == Entry(b"v", revision, revision)
            for token in ("", "a tokem", "a token "):
                async with EmbeddedStore(address, token=token) as stranger:
                    for _ in range(2):
                        with pytest.raises(Refused, match="token is not this store's"):
                            await stranger.get("k")
                    with pytest.raises(Refused, match="token"):
                        await anext(stranger.watch("", 0))
        with pytest.raises(UsageError, match="without a token"):
            await EmbeddedServer().listen_tcp()
        with pytest.raises(UsageError, match="too long for a Unix socket"):
            await EmbeddedServer().listen_unix(tmp_path / ("x" * 200))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "at most 65536"),
        (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "no document"),
        (struct.pack(">I", len(DEEP)) + DEEP, "no document"),
        (pack(Request(1, 0, Ping())), "begins with a hello"),
        (pack(Hello("c", TOKEN, protocol=99)), "protocol 99 is not"),
    ],
)
def test_a_bad_beginning_is_answered_with_the_reason_and_others_are_served(tmp_path, sent, why):
    async def scenario(server, store):
        reader, writer = await call(store)
        writer.write(sent)
        answer = await read_frame(reader, FROM_SERVER)
        assert isinstance(answer, Refusal)
        assert why in answer.text
        assert await read_frame(reader, FROM_SERVER) is None
        writer.close()
        await store.put("k", b"")

    run(scenario, tmp_path)


@pytest.mark.parametrize("end", ["long", "half"])
def test_a_bad_frame_is_refused_and_the_connection_serves_on_if_it_can(tmp_path, end):
    async def scenario(server, store):
        reader, writer = await call(store)
        writer.write(pack(Hello("c", TOKEN)))
        assert isinstance(await read_frame(reader, FROM_SERVER), Welcome)
        for bad in (b"", b"\xc1", b"\x81\xa4type\xa3nil", b"\x93\x01\x02"):
            writer.write(struct.pack(">I", len(bad)) + bad)
            assert isinstance(await read_frame(reader, FROM_SERVER), Refusal)
        writer.write(pack(Request(1, 0, Get("k"))))
        answer = await read_frame(reader, FROM_SERVER)
        assert isinstance(answer, Reply)
        if end == "long":
            writer.write(struct.pack(">I", MAX_FRAME + 1))
            answer = await read_frame(reader, FROM_SERVER)
            assert isinstance(answer, Refusal)
            assert f"at most {MAX_FRAME}" in answer.text
        else:
            writer.write(struct.pack(">I", 100) + b"half")
            writer.write_eof()
        assert await read_frame(reader, FROM_SERVER) is None
        writer.close()
        await store.put("k", b"")

    run(scenario, tmp_path)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_after_the_hello_stop_the_server(tmp_path_factory, frames):
    async def scenario(server, store):
        reader, writer = await call(store)
        writer.write(pack(Hello("c", TOKEN)))
        for one in frames:
            writer.write(struct.pack(">I", len(one)) + one)
        writer.write_eof()
        assert isinstance(await read_frame(reader, FROM_SERVER), Welcome)
        while await read_frame(reader, FROM_SERVER) is not None:
            pass
        writer.close()
        revision = await store.put("k", b"served")
        assert await store.get("k") == Entry(b"served", revision, revision)

    run(scenario, tmp_path_factory.getbasetemp())


def test_what_is_too_long_is_its_callers_error_alone(tmp_path):
    async def scenario(server, store):
        start = await store.put("k", b"")
        changes = store.watch("", start)
        waiting = asyncio.ensure_future(anext(changes))
        with pytest.raises(FrameError, match="at most"):
            await store.put("k", bytes(MAX_FRAME + 1))
        with pytest.raises(Refused, match="a value of"):
            await store.put("k", bytes(MAX_FRAME - 1000))
        for name in ("long/1", "long/2"):
            await store.put(name, bytes(9 << 20))
        with pytest.raises(Refused, match="at most"):
            await store.list("long/")
        assert (await waiting).key == "long/1"
        await changes.aclose()

    run(scenario, tmp_path)


# -- requests that come again


def test_copies_of_a_request_are_answered_alike_and_late_ones_not_at_all(tmp_path):
    async def scenario(server, store):
        reader, writer = await call(store)
        writer.write(pack(Hello("c", TOKEN)))
        await read_frame(reader, FROM_SERVER)
        put = Put("k", b"1", None, 0, None)
        writer.write(2 * pack(Request(1, 0, put)))
        first = await read_frame(reader, FROM_SERVER)
        assert await read_frame(reader, FROM_SERVER) == first
        assert first.failure is None
        writer.write(pack(Request(2, 1, Ping())) + pack(Request(1, 0, put)) + pack(Request(3, 1, Get("k"))))
        assert [(await read_frame(reader, FROM_SERVER)).number for _ in range(2)] == [2, 3]
        assert server.revision == first.value
        writer.close()

    run(scenario, tmp_path)


def test_a_client_that_never_confirms_is_remembered_within_bounds():
    data = Data()
    for number in range(1, 6000):
        data.apply("c", Request(number, 0, Put("k", b"", None, None, None)), 0.0)
    for client in range(3000):
        data.apply(str(client), Request(1, 0, Put("k", b"", None, None, None)), 0.0)
    assert len(data.snapshot()) < 1 << 20


# -- snapshots


def test_a_snapshot_is_the_whole_content(tmp_path):
    async def scenario(server, store):
        lease = await store.grant(60)
        for number in range(20):
            await store.put(f"k/{number}", bytes([number]), lease=lease if number % 2 else None)
        await store.delete("k/4")
        listing = await store.list("")
        async with EmbeddedServer(token=TOKEN, snapshot=server.snapshot()) as again:
            address = await again.listen_unix(tmp_path / "t")
            async with EmbeddedStore(address, token=TOKEN) as other:
                assert await other.list("") == listing
                assert (await other.list("")).revision > listing.revision
                await other.refresh(lease)
                assert await other.grant(1) > lease
                await other.revoke(lease)
                assert all(int(key[2:]) % 2 == 0 for key in await other.list(""))
        assert await store.list("") == listing

    run(scenario, tmp_path)
    with pytest.raises(Refused, match="no snapshot"):
        EmbeddedServer(snapshot=b"nonsense")


def test_after_an_old_snapshot_nothing_of_the_lost_time_is_taken_for_new(tmp_path):
    async def scenario(server, store):
        await store.put("master", b"a")
        early = (await store.list("")).revision
        snapshot = server.snapshot()
        await store.delete("master")
        lost = Fence("master", await store.put("master", b"b"))
        await server.close()
        async with EmbeddedServer(token=TOKEN, snapshot=snapshot) as again:
            await again.listen_unix(tmp_path / "s")
            with pytest.raises(Fenced):
                await store.put("state", b"", fence=lost)
            with pytest.raises(Conflict):
                await store.put("master", b"c", expect=lost.created)
            async with aclosing(store.watch("", lost.created)) as changes:
                with pytest.raises(Compacted):
                    await anext(changes)
            async with aclosing(store.watch("", early)) as changes:
                new = await store.put("state", b"")
                assert new > lost.created
                assert (await anext(changes)).revision == new

    run(scenario, tmp_path)


def test_a_store_that_begins_empty_again_is_not_taken_for_the_old_one(tmp_path):
    async def scenario(server, store):
        lease = await store.grant(60)
        fence = Fence("master", await store.put("master", b"a", lease=lease))
        changes = store.watch("", fence.created)
        waiting = asyncio.ensure_future(anext(changes))
        await store.get("master")
        await server.close()
        async with EmbeddedServer(token=TOKEN) as again:
            await again.listen_unix(tmp_path / "s")
            assert await store.put("master", b"b") > fence.created
            with pytest.raises(Compacted):
                await waiting
            with pytest.raises(Fenced):
                await store.put("state", b"", fence=fence)
            assert await store.grant(1) > lease
            with pytest.raises(LeaseLost):
                await store.refresh(lease)

    run(scenario, tmp_path)


def test_the_host_hears_of_a_write_before_anybody_is_told(tmp_path):
    async def main():
        kept = []
        server = EmbeddedServer(on_commit=lambda revision: kept.append((revision, server.snapshot())))
        async with server, EmbeddedStore(await server.listen_unix(tmp_path / "s")) as store:
            for number in range(3):
                revision = await store.put("k", str(number).encode())
                assert kept[-1][0] == revision
        data = Data()
        data.restore(kept[1][1], 0.0)
        reply = data.apply("another", Request(1, 0, Get("k")), 0.0)
        assert reply.entry.value == b"1"

    asyncio.run(main())


# -- time


def test_leases_follow_the_injected_clock(tmp_path):
    async def main():
        now = 0.0
        server = EmbeddedServer(clock=lambda: now)
        async with server, EmbeddedStore(await server.listen_unix(tmp_path / "s")) as store:
            lease = await store.grant(3)
            await store.put("k", b"", lease=lease)
            for now in (2.9, 5.8):  # noqa: B007 - the server reads it
                server.tick()
                await store.refresh(lease)
            now = 8.7
            server.tick()
            assert await store.get("k") is not None
            now = 8.9
            server.tick()
            assert await store.get("k") is None

    asyncio.run(main())


HOST = """
import asyncio, sys
from pathlib import Path
from melodeon.coord.embedded_server import EmbeddedServer

async def main():
    async with EmbeddedServer() as server:
        print(await server.listen_unix(Path(sys.argv[1])), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_server_that_did_not_run_gives_leases_their_time_back(tmp_path):
    async def main():
        host = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HOST, str(tmp_path / "s")), stdout=asyncio.subprocess.PIPE
        )
        try:
            address = (await host.stdout.readline()).decode().strip()
            async with EmbeddedStore(address) as store, EmbeddedStore(address, patience_s=1.0) as hasty:
                lease = await store.grant(0.5)
                start = await store.put("k", b"", lease=lease)
                host.send_signal(signal.SIGSTOP)
                with pytest.raises(StoreUnreachable):
                    await hasty.get("k")  # nobody could refresh for longer than the lease
                host.send_signal(signal.SIGCONT)
                assert await store.get("k") is not None
                await store.refresh(lease)
                async with aclosing(store.watch("k", start)) as changes:
                    assert (await anext(changes)).entry is None  # and it ends, by itself, when it is not refreshed
        finally:
            host.kill()
            await host.wait()

    asyncio.run(main())


def test_a_put_over_a_unix_socket_takes_less_than_a_millisecond(tmp_path):
    async def scenario(server, store):
        seconds = []
        for number in range(500):
            begun = time.perf_counter()
            await store.put("k", str(number).encode() * 20)
            seconds.append(time.perf_counter() - begun)
        print(f"put: p50 {statistics.median(seconds) * 1e6:.0f} us, p99 {sorted(seconds)[494] * 1e6:.0f} us")
        assert statistics.median(seconds) < 1e-3

    run(scenario, tmp_path)
