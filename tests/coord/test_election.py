"""Elections on both stores. Whoever loses its lease, or sleeps through its end, can do no harm."""

import asyncio
import signal
import sys
from contextlib import aclosing

import pytest

from melodeon.coord.election import campaign
from melodeon.coord.store import Entry, Fenced, follow, open_store
from tests.coord.etcd_process import DEADLINE_S
from tests.coord.sites import run

TTL_S = 1.0


def test_one_of_many_candidates_wins_and_each_term_has_a_higher_number(site):
    async def scenario(s, store):
        key, numbers, holders = s.key("master"), [], 0

        async def stand(name):
            nonlocal holders
            async with s.open() as mine:
                term = await campaign(mine, key, name, 30)
                holders += 1
                assert holders == 1
                assert await mine.get(key) == Entry(name, term.number, term.number)
                await mine.put(s.key("state"), name, fence=term.fence)
                numbers.append(term.number)
                holders -= 1
                await term.resign()
                assert term.lost.is_set()

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(stand(f"candidate {index}".encode()) for index in range(5)))
        assert len(numbers) == 5
        assert numbers == sorted(set(numbers))
        assert await store.get(key) is None

    run(scenario, site)


def test_a_key_that_begins_alike_is_not_the_masters(site):
    async def scenario(s, store):
        await store.put(s.key("master2"), b"another election")
        async with asyncio.timeout(DEADLINE_S):
            term = await campaign(store, s.key("master"), b"me", 30)
        assert await store.get(s.key("master")) == Entry(b"me", term.number, term.number)
        await term.resign()

    run(scenario, site)


def test_a_term_outlives_its_time_to_live_by_refreshing(site):
    async def scenario(s, store):
        term = await campaign(store, s.key("master"), b"me", TTL_S)
        # Another lease, not refreshed and granted later, is the hourglass.
        start = await store.put(s.key("hourglass"), b"", lease=await store.grant(TTL_S))
        async with aclosing(store.watch(s.key("hourglass"), start)) as changes:
            ended = asyncio.ensure_future(anext(changes))
            async with asyncio.timeout(DEADLINE_S):
                while not ended.done():
                    await asyncio.wait({ended}, timeout=TTL_S / 2)  # the term refreshes meanwhile
                    s.a_little_later()
        assert not term.lost.is_set()
        await store.put(s.key("state"), b"", fence=term.fence)
        await term.resign()

    run(scenario, site)


@pytest.mark.parametrize("how", ["deleted", "unreachable"])
def test_a_holder_is_told_that_its_term_is_over(site, how):
    async def scenario(s, store):
        term = await campaign(store, s.key("master"), b"me", TTL_S)
        if how == "deleted":
            async with open_store(s.direct, token=s.token) as other:
                await other.delete(s.key("master"))
        else:
            s.proxy.silent = True
        async with asyncio.timeout(DEADLINE_S):
            await term.lost.wait()
        if how == "deleted":
            with pytest.raises(Fenced):
                await store.put(s.key("state"), b"", fence=term.fence)
        s.proxy.silent = False
        await term.resign()

    run(scenario, site)


def test_a_waiting_candidate_survives_lost_connections_and_restarts(site):
    async def scenario(s, store):
        async with s.open() as mine:
            holder = await campaign(store, s.key("master"), b"holder", 30)
            waiting = asyncio.create_task(campaign(mine, s.key("master"), b"next", 30))
            s.proxy.cut()
            await s.stop()
            await s.start()
            await store.put(s.key("state"), b"", fence=holder.fence)
            assert not waiting.done()
            await holder.resign()
            async with asyncio.timeout(DEADLINE_S):
                term = await waiting
            assert term.number > holder.number
            await term.resign()

    run(scenario, site)


HOLDER = """
import asyncio, sys
from melodeon.coord.election import campaign
from melodeon.coord.store import StoreError, open_store

async def main():
    address, token, master, state = sys.argv[1:]
    async with open_store(address, token=token) as store:
        term = await campaign(store, master, b"the paused one", 1.0)
        print("holds", term.number, flush=True)
        sys.stdin.readline()  # blocks the event loop: no refresh from here on, as in a process that does not run
        try:
            print("wrote", await store.put(state, b"by the paused one", fence=term.fence), flush=True)
        except StoreError as error:
            print(type(error).__name__, flush=True)
        await asyncio.wait_for(term.lost.wait(), 20)
        print("lost", flush=True)

asyncio.run(main())
"""


def test_a_paused_holder_that_wakes_up_finds_its_writes_fenced(site):
    async def scenario(s, store):
        master, state = s.key("master"), s.key("state")
        holder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HOLDER, s.direct, s.token, master, state),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                word, number = (await holder.stdout.readline()).split()
                assert word == b"holds"
                holder.send_signal(signal.SIGSTOP)
                waiting = asyncio.create_task(campaign(store, master, b"the next one", 30))
                async with aclosing(follow(store, master)) as changes:
                    assert (await anext(changes)).entry.value == b"the paused one"
                    s.let_leases_end()
                    assert (await anext(changes)).entry is None
                term = await waiting
                assert term.number > int(number)
                written = await store.put(state, b"by the next one", fence=term.fence)
                holder.send_signal(signal.SIGCONT)
                holder.stdin.write(b"go on\n")
                assert await holder.stdout.readline() == b"Fenced\n"
                assert await holder.stdout.readline() == b"lost\n"
            assert await store.get(state) == Entry(b"by the next one", written, written)
            await term.resign()
        finally:
            if holder.returncode is None:
                holder.kill()
            await holder.communicate()

    run(scenario, site)
