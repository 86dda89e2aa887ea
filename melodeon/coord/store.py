"""The coordination store: a small table of keys that all agents of a job see alike. Two implementations, one behaviour.

Every write gets the next *revision* of the whole store. An entry knows the revision that created it and the one that
changed it last, so a write can be conditional on what its writer has seen (`expect`) and on a key that says who may
write (`fence`). A *lease* is a promise to come back in time; a key written under it goes with it. A lease is no lock: a
holder that was paused may wake up after its lease has ended, so every effect that must not come from such a holder is
written with a `Fence`, and the store refuses it.

    StoreError                 1  what the store answers other than yes
    |-- Conflict               1  the entry is not the one that was expected
    |-- Fenced                 1  the writer's term is over
    |-- LeaseLost              1  the lease is not known, or has ended
    |-- Compacted              1  changes since that revision are not all kept any more: list again
    |-- Refused                1  a wrong token, or a request that the store does not take
    `-- StoreUnreachable       5  no answer within the deadline; a write may or may not have been applied
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

import msgspec

from melodeon.core.errors import MelodeonError, UsageError

LAST_PORT = 65535


class StoreError(MelodeonError):
    """What the store answers other than yes."""


class Conflict(StoreError):
    """The entry is not the one that was expected."""


class Fenced(StoreError):
    """The writer's term is over; somebody else may have taken its place."""


class LeaseLost(StoreError):
    """The lease is not known, or has ended; its keys are gone."""


class Compacted(StoreError):
    """Changes since that revision are not all kept any more: list again, and watch from there."""


class Refused(StoreError):
    """A wrong token, or a request that the store does not take."""


class StoreUnreachable(StoreError):
    """No answer within the deadline; a write may or may not have been applied."""

    exit_code = 5


class Entry(msgspec.Struct, frozen=True):
    """A key's value and its history in two numbers."""

    value: bytes
    created: int
    """The revision at which the key came to be; another one after it was deleted and written again."""
    modified: int
    """The revision of the newest write."""


class Change(msgspec.Struct, frozen=True):
    """What happened to one key. The keys of one lease go in one revision, so changes may share a revision."""

    key: str
    entry: Entry | None
    """None: deleted."""
    revision: int


class Fence(msgspec.Struct, frozen=True):
    """A write applies only while this key exists with this creation revision."""

    key: str
    created: int


class Listing(dict[str, Entry]):
    """Entries by key, in the order of the keys, as they were at one revision: `watch(prefix, listing.revision)`."""

    def __init__(self, entries: dict[str, Entry], revision: int) -> None:
        super().__init__(entries)
        self.revision = revision


class Store(Protocol):
    """What both implementations do. Calls wait for the store up to a deadline, then raise StoreUnreachable.

    A call that was cut off is sent again by itself and applied once.
    """

    async def get(self, key: str) -> Entry | None:
        """The entry, if the key exists."""
        ...

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        lease: int | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
    ) -> int:
        """Write, and give the new revision. `expect`: the entry's `modified`, 0 if the key must not exist.

        Without a lease the key stays, also if it had one before. Raises Fenced, Conflict or LeaseLost, in that order.
        """
        ...

    async def delete(self, key: str, *, fence: Fence | None = None) -> bool:
        """Remove the key; whether it was there. Raises Fenced."""
        ...

    async def list(self, prefix: str) -> Listing:
        """All keys that begin so."""
        ...

    async def grant(self, ttl_s: float) -> int:
        """A new lease that ends `ttl_s` after its last refresh (etcd: rounded up to whole seconds, at least 1 or 2)."""
        ...

    async def refresh(self, lease: int) -> None:
        """Begin its time again. Raises LeaseLost."""
        ...

    async def revoke(self, lease: int) -> None:
        """End it now, and delete its keys. One that is not known has ended already: no error."""
        ...

    def watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        """Every change with a higher revision, in order, none lost and none twice, over any lost connection.

        Raises Compacted if some are not kept any more.
        """
        ...

    async def close(self) -> None:
        """Let the connections go; leases and keys stay."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_store(address: str, *, token: str = "", patience_s: float = 10.0) -> Store:
    """The embedded store at `unix:PATH` or `tcp:HOST:PORT`, or etcd at `etcd://HOST:PORT,...` or `http(s)://...,...`."""
    if address.startswith(("unix:", "tcp:")):
        from melodeon.coord.embedded import EmbeddedStore

        return EmbeddedStore(address, token=token, patience_s=patience_s)
    if address.startswith(("etcd://", "http://", "https://")):
        from melodeon.coord.etcd import EtcdStore

        return EtcdStore(address, patience_s=patience_s)
    raise UsageError(
        f"{address!r} names no store: give unix:PATH or tcp:HOST:PORT for the embedded one, etcd://HOST:PORT for etcd"
    )


def check_address(address: str) -> None:
    """Refuse what `open_store` would refuse, before anything is started."""
    if address.startswith(("etcd://", "http://", "https://")):
        from melodeon.coord.etcd_gateway import endpoints_of

        endpoints_of(address)
    else:
        open_store(address)


async def follow(store: Store, prefix: str, known: Mapping[str, Entry] | None = None) -> AsyncGenerator[Change, None]:
    """Everything under a prefix as changes: first what is there, then what happens, through compactions too.

    `known` is what the caller has seen already, in a listing: only what differs from it is told. After a compaction the
    difference between what was told and what is there is told; what came and went in between is not. Good for whoever
    wants the newest state, not for whoever counts changes.
    """
    told = {key: entry.modified for key, entry in (known or {}).items()}
    while True:
        listing = await store.list(prefix)
        for key in [key for key in told if key not in listing]:
            del told[key]
            yield Change(key, None, listing.revision)
        for key, entry in listing.items():
            if told.get(key) != entry.modified:
                told[key] = entry.modified
                yield Change(key, entry, entry.modified)
        try:
            async with aclosing(store.watch(prefix, listing.revision)) as changes:
                async for change in changes:
                    if change.entry is None:
                        told.pop(change.key, None)
                    else:
                        told[change.key] = change.entry.modified
                    yield change
        except Compacted:
            continue
        return


def check_key(key: str) -> str:
    """The key, if it may be one."""
    if not key or key.startswith("\0"):
        raise UsageError(f"{key!r} is no key: it must have a first character, other than NUL")
    return key


def check_ttl(ttl_s: float) -> float:
    """The seconds of a lease, if they may be that."""
    if not 0 < ttl_s <= 1e6:
        raise UsageError(f"a lease of {ttl_s} s: give more than 0 and at most a million seconds")
    return ttl_s
