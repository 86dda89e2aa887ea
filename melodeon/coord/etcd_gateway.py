"""etcd's JSON gateway over HTTP: what it says, which of several endpoints is asked, and when a call is sent again.

Only what the store needs. Integers come as strings, bytes as base64, zeros not at all; msgspec reads all of that.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import httpx
import msgspec

from melodeon.coord.store import LAST_PORT, Refused, StoreUnreachable
from melodeon.core.errors import UsageError

CONNECT_S = 1.0
ANSWER_S = 2.0
"""How long one endpoint may take before the next is asked; a call that comes twice is applied once."""
ROUND_PAUSE_S = 0.05
"""After every endpoint has failed."""

# gRPC's numbers, as the gateway passes them on.
CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, FAILED_PRECONDITION, UNAVAILABLE = 1, 4, 5, 9, 14
_PASSING = (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE)


class Header(msgspec.Struct, frozen=True):
    """On every answer."""

    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    """An entry as etcd tells it."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0


class Range(msgspec.Struct, frozen=True):
    """Entries."""

    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """One operation's answer within a transaction."""

    response_range: Range = Range()


class Transaction(msgspec.Struct, frozen=True):
    """Which branch was taken, and its answers."""

    header: Header = Header()
    succeeded: bool = False
    responses: tuple[Step, ...] = ()


class LeaseLife(msgspec.Struct, frozen=True):
    """What a refresh gives; 0 seconds for a lease that is not there."""

    TTL: int = 0


class LeaseAlive(msgspec.Struct, frozen=True):
    """The refresh's only message of a stream."""

    result: LeaseLife = LeaseLife()


class Event(msgspec.Struct, frozen=True):
    """One change; `type` is PUT where it is missing."""

    kv: KeyValue
    type: str = "PUT"


class Watched(msgspec.Struct, frozen=True):
    """All changes of one or more whole revisions."""

    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: tuple[Event, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """An error's number and sentence."""

    code: int = 0
    message: str = ""


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch."""

    result: Watched | None = None
    error: Problem | None = None


class Nothing(msgspec.Struct, frozen=True):
    """An answer without content of interest."""


class GatewayError(Exception):
    """etcd answered with an error that asking again does not cure."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


T = TypeVar("T", bound=msgspec.Struct)


def endpoints_of(address: str) -> list[str]:
    """The base URLs in `etcd://H:P,H:P` or `http://H:P,http://H:P` (https too)."""
    found = []
    for part in address.removeprefix("etcd://").split(","):
        url = part.strip() if "://" in part else f"http://{part.strip()}"
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host or (parsed.port or 0) > LAST_PORT:
            raise UsageError(f"{address!r} is no address of etcd: give etcd://HOST:PORT, several separated by commas")
        found.append(url.rstrip("/"))
    return found


class Gateway:
    """One HTTP client over all endpoints; stays with the one that answered last."""

    def __init__(self, address: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        self._endpoints = endpoints_of(address)
        self._turn = 0
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            # A member that is cut off from its leader would serve a watch on which nothing happens.
            headers={"Grpc-Metadata-hasleader": "true"},
            trust_env=False,  # a proxy for the outside world is not the way to one's own store
            verify=any(endpoint.startswith("https") for endpoint in self._endpoints),
        )

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()

    def next_endpoint(self) -> None:
        """Ask another one from now on."""
        self._turn += 1

    @property
    def endpoint(self) -> str:
        """The one that is asked now."""
        return self._endpoints[self._turn % len(self._endpoints)]

    async def call(self, path: str, body: dict[str, Any], answer: type[T], deadline: float) -> T:
        """Ask until somebody answers, at most until `deadline` (of the event loop's clock)."""
        content = msgspec.json.encode(body)
        why = ""
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in itertools.count(1):
                    try:
                        response = await self._http.post(f"{self.endpoint}/v3/{path}", content=content)
                        if response.status_code == httpx.codes.OK:
                            return msgspec.json.decode(response.content, type=answer, strict=False)
                        problem = _problem(response.status_code, response.content)
                        if problem.code not in _PASSING:
                            raise problem
                        why = str(problem)
                    except (httpx.TransportError, msgspec.DecodeError) as error:
                        why = f"{type(error).__name__} {error}".strip()
                    self.next_endpoint()
                    if attempt % len(self._endpoints) == 0:
                        await asyncio.sleep(ROUND_PAUSE_S)
        except TimeoutError:
            pass
        raise StoreUnreachable(f"no etcd at {self.address} has answered in time ({why or 'silence'}): is it running?")

    async def stream(self, path: str, body: dict[str, Any], *, idle_s: float) -> AsyncGenerator[Watched, None]:
        """One connection's messages. Ends by an httpx.TransportError when it is lost or silent for `idle_s`.

        The first message must come as fast as any answer.
        """
        timeout = httpx.Timeout(idle_s, connect=CONNECT_S)
        request = self._http.stream(
            "POST", f"{self.endpoint}/v3/{path}", content=msgspec.json.encode(body), timeout=timeout
        )
        async with request as response:
            if response.status_code != httpx.codes.OK:
                problem = _problem(response.status_code, await response.aread())
                if problem.code in _PASSING:
                    raise httpx.RemoteProtocolError(str(problem))
                raise problem
            async for line in response.aiter_lines():
                if line:
                    yield _watched(line)
        raise httpx.RemoteProtocolError("the stream ended")


def _watched(line: str) -> Watched:
    try:
        said = msgspec.json.decode(line, type=WatchLine, strict=False)
    except msgspec.DecodeError as error:
        raise httpx.RemoteProtocolError(f"half a message: {error}") from None
    if said.result is None:
        raise httpx.RemoteProtocolError(said.error.message if said.error else "an empty message")
    return said.result


def _problem(status: int, content: bytes) -> GatewayError:
    try:
        problem = msgspec.json.decode(content, type=Problem, strict=False)
    except msgspec.DecodeError:
        problem = Problem(message=content[:200].decode(errors="replace"))
    code = problem.code or (UNAVAILABLE if status in (502, 503, 504) else 0)
    return GatewayError(code, f"{problem.message or 'no reason given'} (HTTP {status})")


def refused(error: GatewayError) -> Refused:
    """For callers: an answer that nothing here has a better word for."""
    return Refused(f"etcd refuses: {error}")
