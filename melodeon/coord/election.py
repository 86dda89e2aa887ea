"""Who is master: compare-and-swap a key under a lease, refresh the lease, watch the key (Amoeba's Algorithm 1).

A won election is a `Term`. Its `fence` goes with every write that only the master may make: the store refuses it once
the key is gone or another's. `lost` tells the holder that its term is over; a holder that was paused learns it late,
and that is what the fence is for.
"""

import asyncio
from contextlib import aclosing, suppress

from melodeon.coord.store import Compacted, Conflict, Fence, LeaseLost, Store, StoreError, StoreUnreachable


class Term:
    """The time in which one candidate holds a key; made by `campaign`."""

    def __init__(self, store: Store, fence: Fence, lease: int, ttl_s: float, held_until: float) -> None:
        """`held_until`: when, by the event loop's clock, the lease ends if it is not refreshed."""
        self.fence = fence
        self.lost = asyncio.Event()
        """Set when the term is over, by `resign()`, by somebody's deed, or because the store was out of reach."""
        self._store, self._lease, self._ttl_s, self._held_until = store, lease, ttl_s, held_until
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    @property
    def number(self) -> int:
        """Grows from term to term."""
        return self.fence.created

    async def resign(self) -> None:
        """Give the key back; the next candidate has it at once. Without the store it falls back by itself."""
        self.lost.set()
        self._refreshing.cancel()
        await asyncio.gather(self._refreshing, return_exceptions=True)
        with suppress(StoreError):
            await self._store.revoke(self._lease)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(min(self._ttl_s / 3, max(0.0, self._held_until - loop.time())))
                if loop.time() >= self._held_until:
                    return  # the lease may have ended: act as if it had, before another one acts as master
                asked_at = loop.time()
                with suppress(StoreUnreachable):
                    async with asyncio.timeout_at(self._held_until):
                        await self._store.refresh(self._lease)
                        entry = await self._store.get(self.fence.key)
                    if entry is None or entry.created != self.fence.created:
                        return
                    self._held_until = asked_at + self._ttl_s
        except (StoreError, TimeoutError):
            return  # the lease has ended, or nobody answered before it did
        finally:
            self.lost.set()


async def campaign(store: Store, key: str, me: bytes, ttl_s: float) -> Term:
    """Wait until the key is free, take it, and keep it. `me` is its value: how others find the holder.

    Several candidates may see it free; one gets it. Raises StoreUnreachable if the store is away for too long.
    """
    loop = asyncio.get_running_loop()
    while True:
        await _until_free(store, key)
        begun = loop.time()
        lease = await store.grant(ttl_s)
        try:
            created = await store.put(key, me, lease=lease, expect=0)
        except Conflict:
            await store.revoke(lease)  # somebody else was faster
        except LeaseLost:
            continue  # this process was paused for longer than the lease
        else:
            return Term(store, Fence(key, created), lease, ttl_s, begun + ttl_s)


async def _until_free(store: Store, key: str) -> None:
    while True:
        listing = await store.list(key)
        if key not in listing:
            return
        with suppress(Compacted):
            async with aclosing(store.watch(key, listing.revision)) as changes:
                async for change in changes:
                    if change.key == key and change.entry is None:
                        return
            raise StoreUnreachable(f"the store was closed while waiting for {key} to become free")
