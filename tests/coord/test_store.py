"""One behaviour, two stores: all of this runs on the embedded store and on a real etcd, over a network that fails."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from melodeon.coord.store import (
    Change,
    Compacted,
    Conflict,
    Entry,
    Fence,
    Fenced,
    LeaseLost,
    Store,
    StoreError,
    StoreUnreachable,
    follow,
    open_store,
)
from melodeon.core.errors import UsageError

DEADLINE_S = 20.0


def run(scenario: Callable[..., Coroutine[Any, Any, None]], site: Any) -> None:
    """A scenario on a fresh site with one client, within a deadline."""

    async def main() -> None:
        async with asyncio.timeout(3 * DEADLINE_S), site() as s, s.open() as store:
            await scenario(s, store)

    asyncio.run(main())


async def take(changes: AsyncGenerator[Change, None], count: int) -> list[Change]:
    """The next changes, within a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(changes) for _ in range(count)]


# -- entries


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
                    await s.a_little_later()
            assert (await gone).key == s.key("left")
            await store.refresh(held)
            assert await store.get(s.key("held")) is not None
            s.let_leases_end()
            assert [change.key for change in await take(changes, 1)] == [s.key("held")]
        with pytest.raises(LeaseLost):
            await store.refresh(held)

    run(scenario, site)


# -- watches


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


def test_closing_the_client_ends_its_watches_and_refuses_calls(site):
    async def scenario(s, store):
        start = await store.put(s.key("k"), b"")
        seen = []

        async def watch():
            async for change in store.watch(s.key(""), start):
                seen.append(change.key)

        watching = asyncio.create_task(watch())
        await store.put(s.key("l"), b"")
        async with asyncio.timeout(DEADLINE_S):
            while not seen:
                await asyncio.sleep(0.01)
            await store.close()
            await watching
        assert seen == [s.key("l")]
        with pytest.raises(StoreUnreachable, match="closed"):
            await store.get(s.key("k"))

    run(scenario, site)


# -- faults


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
        asked = s.proxy.accepted
        waiting = asyncio.create_task(store.put(s.key("k"), b"2", expect=before))
        async with asyncio.timeout(DEADLINE_S):
            while s.proxy.accepted == asked:  # until the client tries another connection by itself
                await asyncio.sleep(0.01)
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


def test_an_address_chooses_the_store_and_a_wrong_one_is_named():
    for address in ("file:/x", "unix:", "tcp:host", "tcp:host:port", "etcd://", "etcd://a:1,,b:2", "http://"):
        with pytest.raises(UsageError, match="give "):
            open_store(address)


# -- the law: a store is a dictionary with numbers

NAMES = st.sampled_from(["a", "a/1", "b"])
SLOTS = st.integers(0, 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=3), st.none() | SLOTS),
    st.tuples(st.just("expect"), NAMES, st.binary(max_size=3), st.integers(-1, 1)),
    st.tuples(st.just("fence"), NAMES, NAMES, st.integers(-1, 1)),
    st.tuples(st.just("delete"), NAMES, st.none() | NAMES),
    st.tuples(st.just("revoke"), SLOTS),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "c"])),
)


class Model:
    """The same store in the fewest words: values, two numbers each, and who holds what."""

    def __init__(self, revision: int, prefix: str, leases: list[int]) -> None:
        self.revision, self.prefix, self.leases = revision, prefix, leases
        self.entries: dict[str, Entry] = {}
        self.held: dict[str, int] = {}
        self.ended: set[int] = set()
        self.history: list[Change] = []

    def write(self, key: str, value: bytes, slot: int | None = None) -> int:
        if slot in self.ended:
            raise LeaseLost
        self.revision += 1
        old = self.entries.get(key)
        self.entries[key] = Entry(value, old.created if old else self.revision, self.revision)
        self.held.pop(key, None)
        if slot is not None:
            self.held[key] = slot
        self.history.append(Change(key, self.entries[key], self.revision))
        return self.revision

    def remove(self, keys: list[str]) -> bool:
        self.revision += bool(keys)
        for key in sorted(keys):
            del self.entries[key]
            self.held.pop(key, None)
            self.history.append(Change(key, None, self.revision))
        return bool(keys)

    def created(self, key: str) -> int:
        return self.entries[key].created if key in self.entries else 0

    def modified(self, key: str) -> int:
        return self.entries[key].modified if key in self.entries else 0

    def expected(self, operation: tuple[Any, ...]) -> Any:
        """What the store must answer, and the change that makes here."""
        match operation:
            case "put", name, value, slot:
                return self.write(self.prefix + name, value, slot)
            case "expect", name, value, off:
                if off and max(0, self.modified(self.prefix + name) + off) != self.modified(self.prefix + name):
                    raise Conflict
                return self.write(self.prefix + name, value)
            case "fence", name, guard, off:
                if off or not self.created(self.prefix + guard):
                    raise Fenced
                return self.write(self.prefix + name, b"fenced")
            case "delete", name, guard:
                if guard is not None and not self.created(self.prefix + guard):
                    raise Fenced
                return self.remove([self.prefix + name] if self.prefix + name in self.entries else [])
            case "revoke", slot:
                self.ended.add(slot)
                self.remove([key for key, holder in self.held.items() if holder == slot])
                return None
            case "list", name:
                return {key: entry for key, entry in self.entries.items() if key.startswith(self.prefix + name)}
        raise AssertionError(operation)

    async def asked(self, store: Store, operation: tuple[Any, ...]) -> Any:
        """The same of the store itself."""
        match operation:
            case "put", name, value, slot:
                return await store.put(self.prefix + name, value, lease=None if slot is None else self.leases[slot])
            case "expect", name, value, off:
                seen = max(0, self.modified(self.prefix + name) + off)
                return await store.put(self.prefix + name, value, expect=seen)
            case "fence", name, guard, off:
                fence = Fence(self.prefix + guard, (self.created(self.prefix + guard) or 1) + off)
                return await store.put(self.prefix + name, b"fenced", fence=fence)
            case "delete", name, guard:
                key = None if guard is None else self.prefix + guard
                fence = None if key is None else Fence(key, self.created(key) or 1)
                return await store.delete(self.prefix + name, fence=fence)
            case "revoke", slot:
                return await store.revoke(self.leases[slot])
            case "list", name:
                return await store.list(self.prefix + name)
        raise AssertionError(operation)


EXAMPLES = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_any_sequence_of_operations_answers_as_the_model_does(site, operations):
    async def scenario(s, store):
        prefix = s.key(f"{next(EXAMPLES)}/")
        leases = [await store.grant(60), await store.grant(60)]
        model = Model((await store.list(prefix)).revision, prefix, leases)
        start = model.revision
        for operation in operations:
            asking = model.asked(store, operation)  # reads the model before the operation changes it
            answer: Any
            try:
                answer = await asking
            except StoreError as error:
                answer = type(error)
            try:
                expected = model.expected(operation)
            except StoreError as error:
                expected = type(error)
            assert answer == expected, operation
        assert await store.list(prefix) == model.entries
        async with aclosing(store.watch(prefix, start)) as changes:
            assert await take(changes, len(model.history)) == model.history
        for lease in leases:
            await store.revoke(lease)

    run(scenario, site)
