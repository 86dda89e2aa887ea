"""etcd as the coordination store, through its JSON gateway (nothing to compile, one HTTP client, real fail-over).

etcd applies a request that was sent twice twice. So every write is a transaction that also writes this client's
*marker*, a key that holds the number of its newest write, and applies only if the marker is still as this client last
saw it. A copy that comes late finds the marker changed and does nothing; a client that does not know whether its write
arrived sends it again and reads its own number in the marker. Writes of one client go one after the other for that.
"""

import asyncio
import math
import secrets
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from melodeon.coord import etcd_gateway as gateway
from melodeon.coord.closing import Closing
from melodeon.coord.store import (
    Change,
    Compacted,
    Conflict,
    Entry,
    Fence,
    Fenced,
    LeaseLost,
    Listing,
    StoreError,
    StoreUnreachable,
    check_key,
    check_ttl,
)

T = TypeVar("T", bound=msgspec.Struct)

MARKERS = "\0melodeon/clients/"
"""Below every key that users may name; listings of everything begin after it."""
MARKER_TTL_S = 3600
"""What a client that was killed leaves behind is gone after this."""
WATCH_IDLE_S = 10.0
"""A watch on which nothing happened for so long is opened again: a cut cable says nothing."""
READ_AHEAD = 64
"""Messages of a watch that wait for its reader."""

_News = asyncio.Queue[tuple[Change, ...] | StoreError | None]


class _Write(NamedTuple):
    """A change of one key, and what must hold for it."""

    key: bytes
    request: dict[str, Any]
    compare: tuple[dict[str, Any], ...]
    lease: int | None
    fence: Fence | None


class _Marker(NamedTuple):
    """The marker as it was last seen."""

    revision: int = 0
    lease: int = 0
    renew_at: float = 0.0


class EtcdStore(Closing):
    """A client of etcd 3.4 or later at `etcd://HOST:PORT[,HOST:PORT...]`. Belongs to one event loop."""

    def __init__(
        self,
        address: str,
        *,
        patience_s: float = 10.0,
        watch_idle_s: float = WATCH_IDLE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`patience_s`: how long a call waits for any endpoint to answer."""
        self.address = address
        self._patience_s, self._watch_idle_s = patience_s, watch_idle_s
        self._gateway = gateway.Gateway(address, transport)
        self._marker_key = _bytes(MARKERS + uuid.uuid4().hex)
        self._marker = _Marker()
        self._writes = 0
        self._writing = asyncio.Lock()
        self._watches: dict[asyncio.Task[None], _News] = {}
        self._closed = False

    # -- reading

    async def get(self, key: str) -> Entry | None:
        """The entry, if the key exists."""
        found = await self._call("kv/range", {"key": _bytes(check_key(key))}, gateway.Range)
        return _entry(found.kvs[0]) if found.kvs else None

    async def list(self, prefix: str) -> Listing:
        """All keys that begin so."""
        found = await self._call("kv/range", _under(prefix), gateway.Range)
        return Listing({kv.key.decode(): _entry(kv) for kv in found.kvs}, found.header.revision)

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        """Every change with a higher revision; ends when this client is closed."""
        self._check_open()
        news: _News = asyncio.Queue(READ_AHEAD)
        pump = asyncio.get_running_loop().create_task(self._pump(prefix, after, news))
        self._watches[pump] = news
        try:
            while (item := await news.get()) is not None:
                if isinstance(item, StoreError):
                    raise item
                for change in item:
                    yield change
        finally:
            if self._watches.pop(pump, None) is not None:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, prefix: str, after: int, news: _News) -> None:
        """Fill a watch's queue over as many connections as it takes."""
        loop, deadline, failures = asyncio.get_running_loop(), self._deadline(), 0
        while True:
            opened = False
            body = {"create_request": {**_under(prefix), "start_revision": after + 1}}
            try:
                async with aclosing(self._gateway.stream("watch", body, idle_s=self._watch_idle_s)) as messages:
                    async with asyncio.timeout(gateway.ANSWER_S):
                        said = await anext(messages)
                    opened, deadline, failures = True, self._deadline(), 0
                    while True:
                        if changes := _changes(said, after):
                            await news.put(changes)
                            after = changes[-1].revision
                        said = await anext(messages)
            except (httpx.TransportError, TimeoutError) as error:
                deadline = self._deadline() if opened else deadline
                if loop.time() > deadline:
                    await news.put(self._unreachable(f"for a watch, {type(error).__name__} {error}"))
                    return
                failures += 1
                if not (opened and isinstance(error, httpx.ReadTimeout)):  # a quiet watch is no failure
                    self._gateway.next_endpoint()
                if failures > 1:
                    await asyncio.sleep(gateway.ROUND_PAUSE_S)
            except gateway.GatewayError as error:
                await news.put(gateway.refused(error))
                return
            except StoreError as error:
                await news.put(error)
                return

    # -- writing

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        lease: int | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
    ) -> int:
        """Write, and give the new revision."""
        name = _bytes(check_key(key))
        write = {"request_put": {"key": name, "value": value, "lease": lease or 0}}
        compare = () if expect is None else (_compare(name, "MOD", "EQUAL", expect),)
        revision, found = await self._write(_Write(name, write, compare, lease, fence))
        if revision == 0:
            raise Conflict(f"{key} is at revision {found}, not at {expect}: read it again first")
        return revision

    async def delete(self, key: str, *, fence: Fence | None = None) -> bool:
        """Remove the key; whether it was there."""
        name = _bytes(check_key(key))
        # Where the key is absent nothing may be written, the marker neither.
        compare = (_compare(name, "CREATE", "GREATER", 0),)
        revision, _ = await self._write(_Write(name, {"request_delete_range": {"key": name}}, compare, None, fence))
        return revision > 0

    async def _write(self, write: _Write) -> tuple[int, int]:
        """(the write's revision, 0) or (0, the revision that the key has instead of the one compared with)."""
        deadline = self._deadline()
        try:
            async with asyncio.timeout_at(deadline):
                await self._writing.acquire()
        except TimeoutError:
            raise self._unreachable("an earlier write of this client is waiting too") from None
        try:
            self._writes += 1
            number = str(self._writes).encode()
            while True:
                await self._renew_marker(deadline)
                try:
                    answer = await self._ask("kv/txn", self._transaction(write, number), gateway.Transaction, deadline)
                except gateway.GatewayError as error:
                    if error.code != gateway.NOT_FOUND:
                        raise gateway.refused(error) from None
                    self._marker = self._marker._replace(lease=0)  # it may have been the marker's
                    if write.lease is not None:
                        raise LeaseLost(f"lease {write.lease} has ended or never was: ask for a new one") from None
                    continue
                if (outcome := self._outcome(answer, number, write.fence)) is not None:
                    return outcome
        finally:
            self._writing.release()

    def _transaction(self, write: _Write, number: bytes) -> dict[str, Any]:
        compare = [*write.compare, _compare(self._marker_key, "MOD", "EQUAL", self._marker.revision)]
        looked_at = [self._marker_key, write.key]
        if write.fence is not None:
            fence = _bytes(write.fence.key)
            compare.append(_compare(fence, "CREATE", "EQUAL", write.fence.created))
            compare.append(_compare(fence, "CREATE", "GREATER", 0))  # to etcd an absent key is one created at 0
            looked_at.append(fence)
        mark = {"key": self._marker_key, "value": number, "lease": self._marker.lease}
        return {
            "compare": compare,
            "success": [write.request, {"request_put": mark}],
            "failure": [{"request_range": {"key": key}} for key in looked_at],
        }

    def _outcome(self, answer: gateway.Transaction, number: bytes, fence: Fence | None) -> tuple[int, int] | None:
        """What a transaction came to; None: the marker was not as this client thought, so ask again."""
        if answer.succeeded:
            self._marker = self._marker._replace(revision=answer.header.revision)
            return answer.header.revision, 0
        marker, entry, *fences = [
            step.response_range.kvs[0] if step.response_range.kvs else gateway.KeyValue() for step in answer.responses
        ]
        seen, self._marker = self._marker.revision, self._marker._replace(revision=marker.mod_revision)
        if marker.mod_revision != seen:
            # Either an earlier copy of this write was applied, or one whose caller did not wait for it.
            return (marker.mod_revision, 0) if marker.value == number else None
        if fence is not None and (fence.created <= 0 or fences[0].create_revision != fence.created):
            now = f"is of revision {fences[0].create_revision}" if fences[0].create_revision else "is gone"
            raise Fenced(f"the term of {fence.key} that began at revision {fence.created} is over: the key {now}")
        return 0, entry.mod_revision

    async def _renew_marker(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        if self._marker.lease == 0 or now > self._marker.renew_at:
            lease = await self._grant(MARKER_TTL_S, deadline)
            self._marker = self._marker._replace(lease=lease, renew_at=now + MARKER_TTL_S / 2)

    # -- leases

    async def grant(self, ttl_s: float) -> int:
        """A new lease of whole seconds, not shorter than etcd's own shortest."""
        return await self._grant(math.ceil(check_ttl(ttl_s)), self._deadline())

    async def _grant(self, ttl_s: int, deadline: float) -> int:
        lease = secrets.randbelow(2**62) + 1  # chosen here, so that asking twice gives one lease
        try:
            await self._ask("lease/grant", {"TTL": ttl_s, "ID": lease}, gateway.Nothing, deadline)
        except gateway.GatewayError as error:
            if error.code != gateway.FAILED_PRECONDITION:
                raise gateway.refused(error) from None
        return lease

    async def refresh(self, lease: int) -> None:
        """Begin its time again."""
        alive = await self._call("lease/keepalive", {"ID": lease}, gateway.LeaseAlive)
        if alive.result.TTL <= 0:
            raise LeaseLost(f"lease {lease} has ended or never was: ask for a new one")

    async def revoke(self, lease: int) -> None:
        """End it now, and delete its keys."""
        try:
            await self._ask("lease/revoke", {"ID": lease}, gateway.Nothing, self._deadline())
        except gateway.GatewayError as error:
            if error.code != gateway.NOT_FOUND:
                raise gateway.refused(error) from None

    # -- the client itself

    async def close(self) -> None:
        """Let the connections and the marker go."""
        if self._closed:
            return
        if self._marker.lease:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.revoke(self._marker.lease)
        self._closed = True
        watches, self._watches = self._watches, {}
        for pump in watches:
            pump.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for news in watches.values():
            if news.full():
                news.get_nowait()
            news.put_nowait(None)
        await self._gateway.close()

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience_s

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnreachable(f"the client of etcd at {self.address} was closed")

    def _unreachable(self, why: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"no etcd at {self.address} has answered for {self._patience_s:g} s ({why}): is it running?"
        )

    async def _ask(self, path: str, body: dict[str, Any], answer: type[T], deadline: float) -> T:
        self._check_open()
        return await self._gateway.call(path, body, answer, deadline)

    async def _call(self, path: str, body: dict[str, Any], answer: type[T]) -> T:
        try:
            return await self._ask(path, body, answer, self._deadline())
        except gateway.GatewayError as error:
            raise gateway.refused(error) from None


def _bytes(key: str) -> bytes:
    return key.encode()


def _under(prefix: str) -> dict[str, bytes]:
    """The range of all keys with a prefix: up to the prefix with its last byte raised."""
    if not prefix:
        return {"key": b"\1", "range_end": b"\0"}  # to the end, without the markers
    name = _bytes(prefix)  # UTF-8 has no byte 0xff, so the last one can be raised
    return {"key": name, "range_end": name[:-1] + bytes([name[-1] + 1])}


def _compare(key: bytes, target: str, result: str, revision: int) -> dict[str, Any]:
    field = "mod_revision" if target == "MOD" else "create_revision"
    return {"key": key, "target": target, "result": result, field: revision}


def _entry(kv: gateway.KeyValue) -> Entry:
    return Entry(kv.value, kv.create_revision, kv.mod_revision)


def _changes(said: gateway.Watched, after: int) -> tuple[Change, ...]:
    """What a message tells. Its events are whole revisions."""
    if said.compact_revision:
        raise Compacted(
            f"changes after revision {after} are compacted away, up to {said.compact_revision}: list again, "
            "and watch from the listing's revision"
        )
    if said.canceled:
        raise httpx.RemoteProtocolError(said.cancel_reason or "etcd ended the watch")
    return tuple(
        Change(event.kv.key.decode(), None if event.type == "DELETE" else _entry(event.kv), event.kv.mod_revision)
        for event in said.events
    )
