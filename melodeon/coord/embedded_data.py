"""What the embedded store holds and how a request changes it. No IO and no clock: the time is passed in.

Revisions grow over any restart: the host begins at its wall clock's microseconds, or behind what a snapshot has seen.
So no fence and no watch of an earlier life can be taken for one of this life.
"""

from collections import deque
from typing import NamedTuple

import msgspec

from melodeon.coord.embedded_values import (
    Delete,
    Failure,
    Get,
    Grant,
    List,
    Operation,
    Ping,
    Put,
    Refresh,
    Reply,
    Request,
    Revoke,
)
from melodeon.coord.store import Change, Compacted, Conflict, Entry, Fence, Fenced, LeaseLost, Refused, StoreError
from melodeon.coord.wire import MAX_FRAME

MAX_VALUE = MAX_FRAME - (1 << 16)
"""So that a value fits into any frame, with its key and numbers."""
MAX_CLIENTS = 1024
"""How many clients' answers are remembered; the ones heard longest ago are forgotten first."""
MAX_ANSWERS = 4096
"""Of one client that never says which of them it has got."""

LOST_AT_MOST = 1_000_000
"""Revisions that a restored store leaves out: more than were ever written after the snapshot, and then lost."""


class Commit(NamedTuple):
    """All that one revision changed."""

    revision: int
    changes: tuple[Change, ...]

    @property
    def size(self) -> int:
        """Roughly, in bytes."""
        return sum(64 + len(change.key) + len(change.entry.value if change.entry else b"") for change in self.changes)

    def under(self, prefix: str) -> tuple[Change, ...]:
        """The part that a watch of a prefix sees."""
        return tuple(change for change in self.changes if change.key.startswith(prefix))


class Lease(msgspec.Struct):
    """A promise to come back before `deadline`."""

    ttl_s: float
    deadline: float
    keys: set[str] = msgspec.field(default_factory=set)


class Memory(msgspec.Struct):
    """One client's answers that it has not confirmed: a write that is sent again gets the same answer."""

    done: int = 0
    """The client has the answers of all requests up to this one."""
    replies: dict[int, Reply] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="embedded-store-1"):
    """All that outlives a restart; deadlines do not, each lease begins its time again."""

    revision: int
    next_lease: int
    entries: dict[str, Entry]
    lease_of: dict[str, int]
    leases: dict[int, float]
    clients: dict[str, Memory]


class Data:
    """The table, its leases, its newest changes, and what it has answered to whom."""

    def __init__(self, first_revision: int = 1, *, history: int = 4096, history_bytes: int = 16 << 20) -> None:
        self.revision = first_revision
        self._limits = (history, history_bytes)
        self._entries: dict[str, Entry] = {}
        self._lease_of: dict[str, int] = {}
        self._leases: dict[int, Lease] = {}
        self._next_lease = first_revision
        self._clients: dict[str, Memory] = {}
        self._history: deque[Commit] = deque()
        self._history_bytes = 0
        self._floor = first_revision
        self._lost = range(0)
        self._fresh: list[Commit] = []

    # -- snapshots

    def snapshot(self) -> bytes:
        """Everything but the history of changes."""
        return msgspec.msgpack.encode(
            Snapshot(
                revision=self.revision,
                next_lease=self._next_lease,
                entries=self._entries,
                lease_of=self._lease_of,
                leases={number: lease.ttl_s for number, lease in self._leases.items()},
                clients=self._clients,
            )
        )

    def restore(self, snapshot: bytes, now: float) -> None:
        """Take a snapshot's content. Revisions go on after those that the snapshot's store may have given out."""
        try:
            kept = msgspec.msgpack.decode(snapshot, type=Snapshot)
        except msgspec.DecodeError as error:
            raise Refused(f"{len(snapshot)} bytes are no snapshot of an embedded store: {error}") from None
        self._entries, self._lease_of, self._clients = kept.entries, kept.lease_of, kept.clients
        self._leases = {number: Lease(ttl_s, now + ttl_s) for number, ttl_s in kept.leases.items()}
        for key, number in kept.lease_of.items():
            self._leases[number].keys.add(key)
        self._next_lease = max(self._next_lease, kept.next_lease)
        first = max(self.revision, kept.revision + LOST_AT_MOST)
        # Whoever has seen exactly the snapshot's revision has missed nothing; who has seen more saw what is lost now.
        self._floor, self._lost, self.revision = kept.revision, range(kept.revision + 1, first), first
        self._history.clear()
        self._history_bytes = 0

    # -- requests

    def apply(self, client: str, request: Request, now: float) -> Reply | None:
        """Carry a request out, once. None: it is an old copy, and its answer has been received."""
        memory = self._clients.pop(client, None) or Memory()
        self._clients[client] = memory  # at the end: heard most recently
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        if request.number <= memory.done:
            return None
        if request.done > memory.done:
            memory.done = request.done
            memory.replies = {number: reply for number, reply in memory.replies.items() if number > request.done}
        if (known := memory.replies.get(request.number)) is not None:
            return known
        try:
            reply = self._carry_out(request, now)
        except StoreError as error:
            reply = Reply(request.number, self.revision, failure=Failure.of(error))
        if isinstance(request.operation, Put | Delete | Grant | Revoke):
            memory.replies[request.number] = reply
            if len(memory.replies) > MAX_ANSWERS:
                del memory.replies[min(memory.replies)]
        return reply

    def _carry_out(self, request: Request, now: float) -> Reply:
        number, operation = request.number, request.operation
        entry, entries, value = None, None, 0
        match operation:
            case Get():
                entry = self._entries.get(operation.key)
            case List():
                entries = {key: self._entries[key] for key in sorted(self._entries) if key.startswith(operation.prefix)}
            case _:
                value = self._change(operation, now)
        return Reply(number, self.revision, entry=entry, entries=entries, value=value)

    def _change(self, operation: Operation, now: float) -> int:
        match operation:
            case Put():
                return self._put(operation)
            case Delete():
                return self._delete(operation)
            case Grant():
                self._next_lease += 1
                self._leases[self._next_lease] = Lease(operation.ttl_s, now + operation.ttl_s)
                return self._next_lease
            case Refresh():
                lease = self._lease(operation.lease)
                lease.deadline = now + lease.ttl_s
            case Revoke():
                self._end_lease(operation.lease)
            case Ping() | Get() | List():
                pass
        return 0

    def _put(self, put: Put) -> int:
        old = self._entries.get(put.key)
        self._check_fence(put.fence)
        if put.expect is not None and put.expect != (old.modified if old else 0):
            raise Conflict(
                f"{put.key} is at revision {old.modified if old else 0}, not at {put.expect}: read it again first"
            )
        if len(put.value) > MAX_VALUE:
            raise Refused(f"{put.key}: a value of {len(put.value)} bytes; at most {MAX_VALUE} are kept")
        lease = None if put.lease is None else self._lease(put.lease)
        self._detach(put.key)
        if lease is not None and put.lease is not None:
            lease.keys.add(put.key)
            self._lease_of[put.key] = put.lease
        revision = self.revision + 1
        entry = Entry(put.value, old.created if old else revision, revision)
        self._entries[put.key] = entry
        self._commit((Change(put.key, entry, revision),))
        return revision

    def _delete(self, delete: Delete) -> int:
        self._check_fence(delete.fence)
        if delete.key not in self._entries:
            return 0
        self._remove((delete.key,))
        return 1

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is None:
            return
        entry = self._entries.get(fence.key)
        if entry is None or entry.created != fence.created:
            now = f"is of revision {entry.created}" if entry else "is gone"
            raise Fenced(f"the term of {fence.key} that began at revision {fence.created} is over: the key {now}")

    # -- leases

    def _lease(self, number: int) -> Lease:
        lease = self._leases.get(number)
        if lease is None:
            raise LeaseLost(f"lease {number} has ended or never was: ask for a new one")
        return lease

    def _detach(self, key: str) -> None:
        number = self._lease_of.pop(key, None)
        if number is not None:
            self._leases[number].keys.discard(key)

    def _end_lease(self, number: int) -> None:
        lease = self._leases.get(number)
        if lease is not None:
            if lease.keys:
                self._remove(tuple(sorted(lease.keys)))
            del self._leases[number]

    def expire(self, now: float) -> None:
        """End the leases whose holders did not come back in time."""
        for number in [number for number, lease in self._leases.items() if lease.deadline <= now]:
            self._end_lease(number)

    def forgive(self, now: float) -> None:
        """Begin the time of overdue leases again: the store itself was not there to hear their holders."""
        for lease in self._leases.values():
            if lease.deadline <= now:
                lease.deadline = now + lease.ttl_s

    @property
    def next_deadline(self) -> float | None:
        """When the next lease would end."""
        return min((lease.deadline for lease in self._leases.values()), default=None)

    # -- changes

    def _remove(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            self._detach(key)
            del self._entries[key]
        self._commit(tuple(Change(key, None, self.revision + 1) for key in keys))

    def _commit(self, changes: tuple[Change, ...]) -> None:
        self.revision += 1
        commit = Commit(self.revision, changes)
        self._fresh.append(commit)
        self._history.append(commit)
        self._history_bytes += commit.size
        most, most_bytes = self._limits
        while len(self._history) > most or self._history_bytes > most_bytes:
            gone = self._history.popleft()
            self._history_bytes -= gone.size
            self._floor = gone.revision

    def take(self) -> list[Commit]:
        """The commits since the last call, for the watches."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def since(self, after: int) -> list[Commit]:
        """The commits with a higher revision. Raises Compacted if that cannot be told."""
        if after < self._floor or after in self._lost or after > self.revision:
            raise Compacted(
                f"changes after revision {after} cannot be told, only those after {self._floor}: list again, "
                "and watch from the listing's revision"
            )
        return [commit for commit in self._history if commit.revision > after]
