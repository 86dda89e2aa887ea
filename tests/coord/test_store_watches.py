"""One behaviour, two stores: watches, over lost connections, restarts and compactions."""

import asyncio
from contextlib import aclosing

import pytest

from melodeon.coord.store import Change, Compacted, Entry, StoreUnreachable, follow, open_store
from tests.coord.etcd_process import DEADLINE_S
from tests.coord.sites import run, take


def test_a_watch_tells_what_was_missed_and_then_what_happens(site):
    async def scenario(s, store):
        first = await store.put(s.key("w/a"), b"1")
        second = await store.put(s.key("w/b"), b"2")
        await store.put(s.key("x"), b"not under the prefix")
        await store.delete(s.key("w/a"))
        async with aclosing(store.watch(s.key("w/"), first)) as changes:
            assert await take(changes, 2) == [
                Change(s.key("w/b"), Entry(b"2", second, second), second),
                Change(s.key("w/a"), None, second + 2),
            ]
            third = await store.put(s.key("w/b"), b"3")
            assert await take(changes, 1) == [Change(s.key("w/b"), Entry(b"3", second, third), third)]

    run(scenario, site)


def test_a_watch_over_lost_connections_loses_and_repeats_nothing(site):
    async def scenario(s, store):
        async with open_store(s.direct, token=s.token) as other:
            start = (await store.list(s.key(""))).revision
            async with aclosing(store.watch(s.key("n/"), start)) as changes:
                seen = []
                for number in range(40):
                    await other.put(s.key(f"n/{number}"), str(number).encode())
                    if number % 7 == 3:
                        s.proxy.cut()
                    if number % 5 == 4:
                        seen += await take(changes, 2)
                seen += await take(changes, 40 - len(seen))
        assert [change.key for change in seen] == [s.key(f"n/{number}") for number in range(40)]
        assert s.proxy.accepted >= 5

    run(scenario, site)


def test_a_watch_and_its_client_survive_a_restart_of_the_store(site):
    async def scenario(s, store):
        lease = await store.grant(60)
        start = await store.put(s.key("r/0"), b"before", lease=lease)
        async with aclosing(store.watch(s.key("r/"), start)) as changes:
            await store.put(s.key("r/1"), b"before")
            assert [change.key for change in await take(changes, 1)] == [s.key("r/1")]
            await s.stop()
            waiting = asyncio.ensure_future(store.put(s.key("r/2"), b"asked for while it was away"))
            await s.start()
            revision = await waiting
            assert [(change.key, change.revision) for change in await take(changes, 1)] == [(s.key("r/2"), revision)]
        assert list(await store.list(s.key("r/"))) == [s.key(f"r/{number}") for number in range(3)]
        await store.refresh(lease)
        await store.revoke(lease)
        assert await store.get(s.key("r/0")) is None

    run(scenario, site)


def test_changes_that_are_not_kept_are_not_passed_over_in_silence(site):
    async def scenario(s, store):
        start = await store.put(s.key("c"), b"")
        await store.put(s.key("c"), b"2")
        await s.compact()
        async with aclosing(store.watch(s.key("c"), start)) as changes:
            with pytest.raises(Compacted, match="list again"):
                await take(changes, 1)
        listing = await store.list(s.key("c"))
        async with aclosing(store.watch(s.key("c"), listing.revision)) as changes:
            last = await store.put(s.key("c"), b"3")
            assert [change.revision for change in await take(changes, 1)] == [last]

    run(scenario, site)


def test_following_a_prefix_tells_the_difference_after_a_compaction(site):
    async def scenario(s, store):
        for name in ("same", "changed", "deleted"):
            await store.put(s.key(f"f/{name}"), b"1")
        async with aclosing(follow(store, s.key("f/"))) as changes:
            assert len(await take(changes, 3)) == 3
            await s.stop()  # so that the watch misses what follows
            asyncio.get_running_loop().call_soon(s.proxy.cut)
            s.proxy.silent = True
            await s.start()
            async with open_store(s.direct, token=s.token) as other:
                await other.put(s.key("f/changed"), b"2")
                await other.delete(s.key("f/deleted"))
                await other.put(s.key("f/new"), b"1")
            await s.compact()
            s.proxy.silent = False
            s.proxy.cut()
            news = await take(changes, 3)
        assert {change.key: change.entry and change.entry.value for change in news} == {
            s.key("f/changed"): b"2",
            s.key("f/deleted"): None,
            s.key("f/new"): b"1",
        }

    run(scenario, site)


def test_following_from_a_listing_tells_what_has_changed_since(site):
    async def scenario(s, store):
        for name in ("same", "changed", "deleted"):
            await store.put(s.key(f"f/{name}"), b"1")
        listing = await store.list(s.key("f/"))
        await store.put(s.key("f/changed"), b"2")
        await store.delete(s.key("f/deleted"))
        async with aclosing(follow(store, s.key("f/"), known=listing)) as changes:
            news = await take(changes, 2)
            last = await store.put(s.key("f/same"), b"2")
            assert [change.revision for change in await take(changes, 1)] == [last]
        assert {change.key: change.entry and change.entry.value for change in news} == {
            s.key("f/changed"): b"2",
            s.key("f/deleted"): None,
        }

    run(scenario, site)


def test_closing_the_client_ends_its_watches_and_refuses_calls(site):
    async def scenario(s, store):
        start = await store.put(s.key("k"), b"")
        seen, told = [], asyncio.Event()

        async def watch():
            async for change in store.watch(s.key(""), start):
                seen.append(change.key)
                told.set()

        watching = asyncio.create_task(watch())
        await store.put(s.key("l"), b"")
        async with asyncio.timeout(DEADLINE_S):
            await told.wait()
            await store.close()
            await watching
        assert seen == [s.key("l")]
        with pytest.raises(StoreUnreachable, match="closed"):
            await store.get(s.key("k"))

    run(scenario, site)
