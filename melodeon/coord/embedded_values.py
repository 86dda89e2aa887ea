"""What the embedded store and its clients say to each other, one frame each.

    client: Hello, then any of Request, WatchFrom, Unwatch          server: Welcome, then Reply, Happened, Refusal

Replies and changes come over one connection in the order of their revisions: whoever has a reply of revision r has
been sent every change up to r.
"""

import msgspec

from melodeon.coord import store
from melodeon.coord.store import Change, Entry, Fence, StoreError

PROTOCOL = 1


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Asks for one entry."""

    key: str


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Writes one entry."""

    key: str
    value: bytes
    lease: int | None
    expect: int | None
    fence: Fence | None


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Removes one entry."""

    key: str
    fence: Fence | None


class List(msgspec.Struct, frozen=True, tag="list"):
    """Asks for all entries under a prefix."""

    prefix: str


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """Asks for a lease."""

    ttl_s: float


class Refresh(msgspec.Struct, frozen=True, tag="refresh"):
    """Begins a lease's time again."""

    lease: int


class Revoke(msgspec.Struct, frozen=True, tag="revoke"):
    """Ends a lease."""

    lease: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a sign of life."""


Operation = Get | Put | Delete | List | Grant | Refresh | Revoke | Ping


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A connection's first frame."""

    client: str
    """The same over all connections of one client; its request numbers belong to it."""
    token: str
    protocol: int = PROTOCOL


class Request(msgspec.Struct, frozen=True, tag="request"):
    """An operation with a number that grows; sent again under the same number, it is applied once."""

    number: int
    done: int
    """The client has, or does not want any more, the answers up to this number."""
    operation: Operation


class WatchFrom(msgspec.Struct, frozen=True, tag="watch"):
    """Asks for the changes under a prefix, from a revision on."""

    watch: int
    prefix: str
    after: int


class Unwatch(msgspec.Struct, frozen=True, tag="unwatch"):
    """Ends a watch."""

    watch: int


ToServer = Hello | Request | WatchFrom | Unwatch


class Failure(msgspec.Struct, frozen=True):
    """An error as it crosses the wire: the name of its class and its sentence."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: StoreError) -> "Failure":
        """The error, to be sent."""
        return cls(type(error).__name__, str(error))

    def error(self) -> StoreError:
        """The error, to be raised."""
        return _KINDS.get(self.kind, store.Refused)(self.text)


_KINDS: dict[str, type[StoreError]] = {
    kind.__name__: kind for kind in (store.Conflict, store.Fenced, store.LeaseLost, store.Compacted, store.Refused)
}


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The answer to a Hello that is accepted."""

    revision: int


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a request."""

    number: int
    revision: int
    """The store's, when the answer was made."""
    entry: Entry | None = None
    entries: dict[str, Entry] | None = None
    value: int = 0
    """A revision, a lease, or how many keys were deleted."""
    failure: Failure | None = None


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    """All that one revision changed under a watch's prefix, or why the watch ended."""

    watch: int
    revision: int
    changes: tuple[Change, ...] = ()
    failure: Failure | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A frame that was not taken, and why."""

    text: str


FromServer = Welcome | Reply | Happened | Refusal

TO_SERVER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
FROM_SERVER: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
