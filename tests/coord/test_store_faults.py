"""One behaviour, two stores: over a network that loses answers, is silent or ends, a write is applied once."""

import asyncio

import pytest

from melodeon.coord.store import Conflict, Entry, Fence, StoreUnreachable
from tests.coord.etcd_process import DEADLINE_S
from tests.coord.sites import run


@pytest.mark.parametrize("lost", [1, 3])
def test_a_write_whose_answer_is_lost_is_applied_once(site, lost):
    async def scenario(s, store):
        key = s.key("k")
        before = await store.put(key, b"0")

        async def with_lost_answers(call):
            s.proxy.swallow = lost
            answer = await call
            assert s.proxy.swallow == 0
            return answer

        # A hello's answer may be among the lost ones; the write is applied by one of the copies, and only by one.
        assert await with_lost_answers(store.put(key, b"1", expect=before)) == before + 1
        assert await with_lost_answers(store.put(s.key("new"), b"1", expect=0)) == before + 2
        assert await with_lost_answers(store.delete(key)) is True
        fence = Fence(s.key("new"), before + 2)
        assert await with_lost_answers(store.put(key, b"2", fence=fence)) == before + 4
        with pytest.raises(Conflict):
            await with_lost_answers(store.put(key, b"3", expect=0))
        lease = await with_lost_answers(store.grant(60))
        assert await store.put(key, b"4", lease=lease) == before + 5
        await with_lost_answers(store.revoke(lease))
        assert await store.get(key) is None

    run(scenario, site)


def test_a_write_is_applied_once_though_the_store_restarts_before_it_can_answer(site):
    async def scenario(s, store):
        before = await store.put(s.key("k"), b"0")
        s.proxy.swallow = 1_000_000
        waiting = asyncio.create_task(store.put(s.key("k"), b"1", expect=before))
        async with asyncio.timeout(DEADLINE_S):
            await s.proxy.swallowed.wait()  # applied, and nobody was told
            await s.stop()
            s.proxy.swallow = 0
            await s.start()
            assert await waiting == before + 1
        assert await store.get(s.key("k")) == Entry(b"1", before, before + 1)

    run(scenario, site)


def test_a_write_that_its_caller_gave_up_is_not_taken_for_the_next_one(site):
    async def scenario(s, store):
        before = await store.put(s.key("a"), b"")
        s.proxy.swallow = 1
        given_up = asyncio.create_task(store.put(s.key("a"), b"given up, and applied"))
        async with asyncio.timeout(DEADLINE_S):
            await s.proxy.swallowed.wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await store.put(s.key("b"), b"") == before + 2
        assert await store.get(s.key("a")) == Entry(b"given up, and applied", before, before + 1)

    run(scenario, site)


def test_counters_of_several_clients_add_up_over_a_bad_network(site):
    async def scenario(s, store):
        key, each = s.key("counter"), 15
        await store.put(key, b"0")

        async def count(client):
            for _ in range(each):
                while True:
                    entry = await client.get(key)
                    try:
                        await client.put(key, str(int(entry.value) + 1).encode(), expect=entry.modified)
                        break
                    except Conflict:
                        continue

        async with s.open() as two, s.open() as three:
            s.proxy.lose_every = 5
            await asyncio.gather(*(count(client) for client in (store, two, three)))
            s.proxy.lose_every = 0
        assert int((await store.get(key)).value) == 3 * each

    run(scenario, site)


def test_a_silent_network_is_given_up_and_the_call_sent_again(site):
    async def scenario(s, store):
        before = await store.put(s.key("k"), b"")
        s.proxy.silent = True
        s.proxy.called.clear()
        waiting = asyncio.create_task(store.put(s.key("k"), b"2", expect=before))
        async with asyncio.timeout(DEADLINE_S):
            await s.proxy.called.wait()  # the client tries another connection by itself
            s.proxy.silent = False
            assert await waiting == before + 1

    run(scenario, site)


def test_a_store_that_stays_away_is_unreachable_and_then_back(site):
    async def scenario(s, store):
        async with s.open(patience_s=0.3) as hasty:
            start = await store.put(s.key("k"), b"1")
            changes = hasty.watch(s.key(""), start)
            watching = asyncio.ensure_future(anext(changes))
            assert await hasty.get(s.key("k")) is not None
            await s.stop()
            with pytest.raises(StoreUnreachable, match="answered") as unreachable:
                await hasty.put(s.key("k"), b"2")
            assert unreachable.value.exit_code == 5
            with pytest.raises(StoreUnreachable):
                async with asyncio.timeout(DEADLINE_S):
                    await watching
            await s.start()
            assert await store.put(s.key("k"), b"3") > start
            assert (await hasty.get(s.key("k"))).value == b"3"

    run(scenario, site)
