"""What only etcd has: several endpoints, members that die, and the marker by which writes are applied once."""

import asyncio
from contextlib import aclosing

import pytest

from melodeon.coord.etcd import MARKERS, EtcdStore
from melodeon.coord.etcd_gateway import Gateway, Range, endpoints_of
from melodeon.coord.store import Conflict, Refused, StoreUnreachable
from tests.coord.etcd_process import DEADLINE_S


async def markers(url: str) -> list[str]:
    gateway = Gateway(url)
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    body = {"key": MARKERS.encode(), "range_end": MARKERS.encode()[:-1] + b"0"}
    found = await gateway.call("kv/range", body, Range, deadline)
    await gateway.close()
    return [kv.key.decode() for kv in found.kvs]


async def end_lease_of_marker(store: EtcdStore) -> None:
    async with EtcdStore(store.address) as other:
        await other.revoke(store._marker.lease)


def test_an_address_may_name_several_endpoints():
    assert endpoints_of("etcd://a:1,b:2") == ["http://a:1", "http://b:2"]
    assert endpoints_of("http://a:1/, https://b:2") == ["http://a:1", "https://b:2"]


def test_a_dead_endpoint_is_passed_over(etcd_member):
    async def main():
        address = f"etcd://127.0.0.1:1,127.0.0.1:{etcd_member.port}"
        async with asyncio.timeout(DEADLINE_S), EtcdStore(address) as store:
            revision = await store.put("dead/endpoint", b"")
            store._gateway.next_endpoint()  # the dead one again
            async with aclosing(store.watch("dead/", revision - 1)) as changes:
                assert (await anext(changes)).revision == revision
        async with EtcdStore("etcd://127.0.0.1:1,127.0.0.1:2", patience_s=0.2) as store:
            with pytest.raises(StoreUnreachable, match="ConnectError"):
                await store.get("k")

    asyncio.run(main())


def test_writes_and_watches_go_on_while_members_die_and_come_back(etcd_cluster):
    async def main():
        address = ",".join(member.url for member in etcd_cluster.members)
        async with asyncio.timeout(90), EtcdStore(address) as store, EtcdStore(address) as other:
            start = await store.put("start", b"")
            seen: list[bytes] = []

            async def watch():
                async with aclosing(other.watch("n", start)) as changes:
                    while len(seen) < 30:
                        seen.append((await anext(changes)).entry.value)

            watching = asyncio.create_task(watch())
            last = 0
            for number in range(30):
                last = await store.put("n", str(number).encode(), expect=last)  # a doubled write would be a conflict
                if number in (5, 12, 19):  # each member in turn, the leader and the one in use among them
                    member = etcd_cluster.members[number % 3 if number != 12 else 1]
                    await asyncio.to_thread(member.stop)
                if number in (8, 15, 22):
                    member = next(member for member in etcd_cluster.members if member.process is None)
                    member.start()
                    await member.until_ready()
            await watching
        assert seen == [str(number).encode() for number in range(30)]

    asyncio.run(main())


def test_the_marker_goes_with_its_client(etcd_member):
    async def main():
        before = await markers(etcd_member.url)
        async with EtcdStore(f"etcd://127.0.0.1:{etcd_member.port}") as store:
            await store.put("marked", b"")
            assert len(await markers(etcd_member.url)) == len(before) + 1
        assert await markers(etcd_member.url) == before

    asyncio.run(main())


def test_a_marker_that_is_gone_is_made_again(etcd_member):
    async def main():
        async with asyncio.timeout(DEADLINE_S), EtcdStore(f"etcd://127.0.0.1:{etcd_member.port}") as store:
            first = await store.put("gone/marker", b"1", expect=0)
            await end_lease_of_marker(store)
            second = await store.put("gone/marker", b"2", expect=first)
            await end_lease_of_marker(store)
            with pytest.raises(Conflict):
                await store.put("gone/marker", b"3", expect=first)
            assert (await store.get("gone/marker")).modified == second
            assert await store.delete("gone/marker")

    asyncio.run(main())


def test_what_etcd_does_not_take_is_refused_with_its_reason(etcd_member):
    async def main():
        async with EtcdStore(f"etcd://127.0.0.1:{etcd_member.port}") as store:
            with pytest.raises(Refused, match="larger than max"):
                await store.put("large", bytes(4 << 20))
            await store.put("small", b"")

    asyncio.run(main())


def test_a_watch_that_is_refused_ends_with_the_reason():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def main():
        other = await asyncio.start_server(answer, "127.0.0.1", 0)  # something else than etcd
        address = f"etcd://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(DEADLINE_S), other, EtcdStore(address) as store:
            with pytest.raises(Refused, match="HTTP 404"):
                await anext(store.watch("k", 1))

    asyncio.run(main())
