"""One behaviour, two stores: entries, fences and leases, on the embedded store and on a real etcd."""

import asyncio
from contextlib import aclosing

import pytest

from melodeon.coord.store import Change, Conflict, Entry, Fence, Fenced, LeaseLost, open_store
from melodeon.core.errors import UsageError
from tests.coord.etcd_process import DEADLINE_S
from tests.coord.sites import run, take


def test_a_write_gets_the_next_revision_and_an_entry_knows_its_history(site):
    async def scenario(s, store):
        key = s.key("é/ключ")
        before = (await store.list(s.key(""))).revision
        assert await store.get(key) is None
        assert await store.put(key, b"\0one\xff") == before + 1
        assert await store.put(key, b"") == before + 2
        assert await store.get(key) == Entry(b"", before + 1, before + 2)
        assert await store.delete(key)
        assert not await store.delete(key)
        assert await store.put(key, b"again") == before + 4
        assert await store.get(key) == Entry(b"again", before + 4, before + 4)

    run(scenario, site)


def test_expect_writes_only_over_what_was_seen(site):
    async def scenario(s, store):
        key = s.key("k")
        first = await store.put(key, b"1", expect=0)
        with pytest.raises(Conflict, match=f"revision {first}, not at 0"):
            await store.put(key, b"2", expect=0)
        second = await store.put(key, b"2", expect=first)
        with pytest.raises(Conflict):
            await store.put(key, b"3", expect=first)
        assert await store.get(key) == Entry(b"2", first, second)
        await store.delete(key)
        with pytest.raises(Conflict, match="revision 0, not"):
            await store.put(key, b"4", expect=second)
        assert await store.get(key) is None

    run(scenario, site)


def test_a_fence_refuses_every_write_of_an_earlier_term(site):
    async def scenario(s, store):
        master, state = s.key("master"), s.key("state")
        old = Fence(master, await store.put(master, b"a"))
        await store.put(master, b"a, moved")  # the same term
        written = await store.put(state, b"by a", fence=old)
        await store.delete(master)
        with pytest.raises(Fenced, match="is gone"):
            await store.put(state, b"by a, late", fence=old)
        new = Fence(master, await store.put(master, b"b"))
        with pytest.raises(Fenced, match=f"is of revision {new.created}"):
            await store.put(state, b"by a, late", fence=old, expect=0)  # fenced before it is in conflict
        with pytest.raises(Fenced):
            await store.delete(state, fence=old)
        assert await store.get(state) == Entry(b"by a", written, written)
        assert await store.put(state, b"by b", fence=new) > new.created
        assert await store.delete(state, fence=new)

    run(scenario, site)


def test_a_listing_is_sorted_exact_and_of_one_revision(site):
    async def scenario(s, store):
        for name in ("b/2", "b/1", "b", "ba", "b/10", "c/1", "b0"):
            last = await store.put(s.key(name), name.encode())
        listing = await store.list(s.key("b/"))
        assert list(listing) == [s.key(name) for name in ("b/1", "b/10", "b/2")]
        assert listing[s.key("b/1")].value == b"b/1"
        assert listing.revision == last
        assert await store.list(s.key("nothing")) == {}
        assert set(await store.list("")) >= set(listing)
        assert all(not key.startswith("\0") for key in await store.list(""))

    run(scenario, site)


def test_keys_and_leases_that_cannot_be_are_refused(site):
    async def scenario(s, store):
        for key in ("", "\0k"):
            with pytest.raises(UsageError, match="is no key"):
                await store.put(key, b"")
        for ttl_s in (0.0, -1.0, float("nan"), 1e9):
            with pytest.raises(UsageError, match="a lease of"):
                await store.grant(ttl_s)

    run(scenario, site)


def test_an_address_chooses_the_store_and_a_wrong_one_is_named():
    for address in ("file:/x", "unix:", "tcp:host", "tcp:host:port", "etcd://", "etcd://a:1,,b:2", "http://"):
        with pytest.raises(UsageError, match="give "):
            open_store(address)


# -- leases


def test_the_keys_of_a_lease_go_with_it_in_one_revision(site):
    async def scenario(s, store):
        lease = await store.grant(60)
        for name in ("z", "a", "kept"):
            await store.put(s.key(name), b"", lease=lease)
        last = await store.put(s.key("kept"), b"without a lease now")
        await store.revoke(lease)
        assert list(await store.list(s.key(""))) == [s.key("kept")]
        async with aclosing(store.watch(s.key(""), last)) as changes:
            gone = await take(changes, 2)
        assert gone == [Change(s.key("a"), None, last + 1), Change(s.key("z"), None, last + 1)]
        with pytest.raises(LeaseLost):
            await store.refresh(lease)
        with pytest.raises(LeaseLost):
            await store.put(s.key("late"), b"", lease=lease)
        with pytest.raises(Conflict):
            await store.put(s.key("kept"), b"", lease=lease, expect=1)
        await store.revoke(lease)
        assert await store.get(s.key("late")) is None

    run(scenario, site)


def test_a_lease_ends_unless_it_is_refreshed(site):
    async def scenario(s, store):
        held, left = await store.grant(1), await store.grant(1)
        await store.put(s.key("held"), b"", lease=held)
        last = await store.put(s.key("left"), b"", lease=left)
        async with aclosing(store.watch(s.key(""), last)) as changes:
            gone = asyncio.ensure_future(anext(changes))
            async with asyncio.timeout(DEADLINE_S):
                while not gone.done():
                    await store.refresh(held)
                    s.a_little_later()
                    await asyncio.wait({gone}, timeout=0.05)  # no longer than that without a refresh
            assert (await gone).key == s.key("left")
            await store.refresh(held)
            assert await store.get(s.key("held")) is not None
            s.let_leases_end()
            assert [change.key for change in await take(changes, 1)] == [s.key("held")]
        with pytest.raises(LeaseLost):
            await store.refresh(held)

    run(scenario, site)
