"""The door: everything that holds for every request, before any route is looked for.

    right Host? -> who is it? -> from our own page? -> body small enough? -> the app -> headers, audit, count

It is outside of the routes, so that no route can forget it: a path that does not exist answers a stranger with 401 as
well. Plain ASGI, so that streams pass through untouched.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from melodeon.control.api.audit import Audit
from melodeon.control.api.auth import USER_KEY, Auth, Caller
from melodeon.control.api.errors import ErrorPage, Forbidden, Unauthorized, of_tree, problem
from melodeon.control.api.metrics import Requests
from melodeon.core.errors import MelodeonError

LARGEST_BODY = 1 << 20
DRAINED = 8 << 20
"""Bytes of a body that is too large that are read all the same, so that the answer is heard."""
BODY_S = 30.0
"""How long somebody may take to send a body."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to

log = logging.getLogger("melodeon.api")


class Hosts:
    """The names by which this service may be called: a page of another site that has its name point here must not."""

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        self._any_address = host in ANY
        names = {*LOOPBACK, *more, *(() if self._any_address else (host,))}
        if self._any_address:
            names |= {socket.gethostname(), socket.getfqdn()}
        self._names = {name.lower().strip("[]") for name in names}

    def allow(self, header: str | None) -> bool:
        """Whether a Host header is one of ours. Ports are not looked at: a tunnel has its own."""
        name = host_of(header)
        if name is None:
            return False
        return name in self._names or (self._any_address and _is_address(name))


def host_of(header: str | None) -> str | None:
    """The name in a Host header."""
    if not header or any(char in header for char in "/@?#\\ \t,"):
        return None
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """The ASGI application around the application."""

    def __init__(
        self, app: ASGIApp, *, auth: Auth, hosts: Hosts, audit: Audit, requests: Requests, error_page: ErrorPage | None
    ) -> None:
        self._app, self._auth, self._hosts, self._audit = app, auth, hosts, audit
        self._requests, self._error_page = requests, error_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or say why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        answer = _Answer(scope, send, self._note)
        try:
            await self._enter(scope, receive, answer)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not answer.status:
                refusal = problem(500, "the service has made a mistake, and its log says which", 1)
                await refusal(scope, receive, answer)
        self._requests.note(scope, answer.status, time.perf_counter() - began)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if not self._hosts.allow(headers.get("host")):
            text = f"host {headers.get('host', '')!r} is not this service: use the address that it was started with"
            await problem(421, text, 2)(scope, receive, send)
            return
        caller = self._auth.identify(headers)
        scope[USER_KEY] = caller.user if caller else None
        try:
            check(scope, headers, caller)
        except MelodeonError as error:
            await self._refuse(error, scope, receive, send)
            return
        if scope["method"] not in SAFE:
            status, body = await read_body(headers, receive)
            if body is None:
                text = f"a body may have {LARGEST_BODY} bytes, and must be sent within {BODY_S:.0f} s"
                await problem(status, text, 2, headers={"Connection": "close"})(scope, receive, send)
                return
            receive = _replayed(body, receive)
        await self._app(scope, receive, send)

    async def _refuse(self, error: MelodeonError, scope: Scope, receive: Receive, send: Send) -> None:
        response = of_tree(error)
        if self._error_page is not None and wants_page(scope):
            response = self._error_page(Request(scope, receive), response.status_code, str(error))
        await response(scope, receive, send)

    def _note(self, scope: Scope, status: int) -> None:
        if scope["method"] in SAFE and status not in (401, 403, 421) and scope["path"] != "/login":
            return
        user, client = scope.get(USER_KEY), scope.get("client")
        endpoint = getattr(scope.get("endpoint"), "__name__", None)
        known: MutableMapping[str, Any] = scope.get("state") or {}
        self._audit.note(
            user=user.name if user is not None else None,
            what=endpoint or f"{scope['method']} {scope['path'][:200]!r}",
            job=known.get("job") or scope.get("path_params", {}).get("job"),
            status=status,
            client=client[0] if client else "",
        )


def check(scope: Scope, headers: Headers, caller: Caller | None) -> None:
    """Refuse strangers, and pages of others that use a browser's cookie."""
    path, method = scope["path"], scope["method"]
    public = path == "/login" or (path.startswith("/static/") and method in SAFE)
    if caller is None and not public:
        raise Unauthorized
    if method not in SAFE and (caller is None or caller.by_cookie) and not is_own_page(headers):
        raise Forbidden("the page that asks is not one of this service: open the service's own address")


def is_own_page(headers: Headers) -> bool:
    """Whether a browser says that the page which asks came from here."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") == "same-origin"
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == headers.get("host", "").lower()


def wants_page(scope: Scope) -> bool:
    """Whether a person looks at the answer in a browser."""
    return not scope["path"].startswith("/api/") and "text/html" in Headers(scope=scope).get("accept", "")


async def read_body(headers: Headers, receive: Receive) -> tuple[int, bytes | None]:
    """All of a body; None with a status when there is too much of it, or it takes too long."""
    length = headers.get("content-length", "0")
    parts: list[bytes] = []
    size, too_large = 0, length.isdecimal() and int(length[:20]) > LARGEST_BODY
    try:
        async with asyncio.timeout(BODY_S):
            while size <= DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return 400, None
                part: bytes = message.get("body", b"")
                size += len(part)
                too_large = too_large or size > LARGEST_BODY
                if not too_large:
                    parts.append(part)
                if not message.get("more_body"):
                    break
    except TimeoutError:
        return 408, None
    return (413, None) if too_large else (200, b"".join(parts))


def _replayed(body: bytes, receive: Receive) -> Receive:
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class _Answer:
    """The way out: adds headers, remembers the status, and lets nothing out that has not been noted."""

    def __init__(self, scope: Scope, send: Send, note: Callable[[Scope, int], None]) -> None:
        self.status = 0
        self._scope, self._send, self._note = scope, send, note
        self._is_static = scope["path"].startswith("/static/")

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if not self._is_static:
                headers.setdefault("cache-control", "no-store")
            self._note(self._scope, self.status)
        await self._send(message)
