"""Requests that find their service, come again when that is safe, and raise from the error tree.

Safe to send again are questions, wishes with a request id (the service answers the same and does nothing), and whatever
never left: a connection that was refused. A service that is being started again is waited for, and looked for anew,
since it may have another address then.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from melodeon.control import address
from melodeon.core.errors import (
    Cancelled,
    MelodeonError,
    NotBitwise,
    NotFound,
    Rejected,
    Unreachable,
    UsageError,
)

URL, TOKEN, STATE = "MELODEON_URL", "MELODEON_TOKEN", "MELODEON_STATE"
PREFIX = "/api/v1"
PATIENCE_S = 5.0
"""How long a service that does not answer is waited for."""
ANSWER_S = 60.0
"""How long the answer to a change may take: it may wait for a disk, or until the cluster has been played forward."""
LOOKS, LEAST_LOOK_S = 3.0, 1.5
"""A question is answered from memory: nobody waits longer for it than so many times their patience."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
UNKNOWN_TOKEN = 401
LAST_PORT = 65535
BY_CODE: Mapping[int, type[MelodeonError]] = {
    2: UsageError,
    3: Rejected,
    4: NotFound,
    5: Unreachable,
    6: NotBitwise,
    7: Cancelled,
}
T = TypeVar("T")


class _Problem(msgspec.Struct):
    error: str
    code: int = 1


class Transport:
    """A connection to one service, wherever it is at the moment."""

    def __init__(self, url: str | None, token: str | None, state: Path | None, patience_s: float) -> None:
        given_state = os.environ.get(STATE)
        self._state = state if state is not None else Path(given_state) if given_state else None
        self._url = url or (os.environ.get(URL) if state is None else None) or None
        self._token = token or os.environ.get(TOKEN) or None
        self.patience_s = patience_s
        self._client: httpx.Client | None = None
        self._base = ""

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- requests ---

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        request_id: str | None = None,
        wait_s: float = 0.0,
    ) -> T:
        """Send a request and read the answer as a value."""
        raw = self.fetch(method, path, params=params, body=body, request_id=request_id, wait_s=wait_s)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise MelodeonError(
                f"the answer of {self._base} to {method} {path} cannot be read ({error}): it and this program are of "
                "different versions"
            ) from error

    def fetch(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        request_id: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """Send a request, again where that is safe and the service is not there, and return the answer's body."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        if request_id is not None:
            headers["Idempotency-Key"] = request_id
        again = method == "GET" or request_id is not None
        answer_s = min(ANSWER_S, max(LEAST_LOOK_S, LOOKS * self.patience_s)) if method == "GET" else ANSWER_S
        for patience in self.attempts(wait_s):
            try:
                response = self.client().request(
                    method,
                    PREFIX + path,
                    params=given(params),
                    content=content,
                    headers=headers,
                    timeout=httpx.Timeout(answer_s + wait_s, connect=self.patience_s + 1),
                )
                check(response.status_code, response.content, self._base)
            except httpx.TransportError as error:
                self.lost(error, patience, again=again)
            except Unreachable:
                if not again or patience.over or not self._base:
                    raise  # what has never been there is not waited for
            else:
                return response.content
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream(self, path: str, params: Mapping[str, object], headers: Mapping[str, str], quiet_s: float) -> Any:
        """An answer that does not end."""
        timeout = httpx.Timeout(quiet_s, connect=self.patience_s + 1)
        with self.client().stream(
            "GET", PREFIX + path, params=given(params), headers=dict(headers), timeout=timeout
        ) as response:
            if response.status_code != 200:
                response.read()
                check(response.status_code, response.content, self._base)
            yield response

    def attempts(self, asked_s: float = 0.0) -> Iterator["Patience"]:
        """Try, and try again with growing pauses until patience has run out, beyond the time that was asked for."""
        until, wait_s = time.monotonic() + self.patience_s + asked_s, FIRST_WAIT_S
        patience = Patience(until=until)
        while True:
            is_last = patience.over
            yield patience
            if is_last:
                return
            time.sleep(min(wait_s, max(0.0, until - time.monotonic())))
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    def lost(self, error: httpx.TransportError, patience: "Patience", *, again: bool) -> None:
        """A connection failed: raise, unless the request may be sent again."""
        base = self._base
        self.close()  # it may be somewhere else by now
        if patience.over or not (again or isinstance(error, httpx.ConnectError)):
            why = str(error) or type(error).__name__
            raise Unreachable(
                f"the service at {base} does not answer ({why}): see whether `melodeon serve` runs there"
            ) from error

    # --- where it is ---

    def client(self) -> httpx.Client:
        """The connection, made anew when the last one was lost."""
        if self._client is None:
            self._base, token = self._locate()
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            # Proxies are for what is far away.
            near = httpx.URL(self._base).host in ("localhost", "127.0.0.1", "::1")
            self._client = httpx.Client(base_url=self._base, headers=headers, trust_env=not near)
        return self._client

    @property
    def url(self) -> str:
        """The service's address."""
        self.client()
        return self._base

    def _locate(self) -> tuple[str, str | None]:
        if self._url is not None:
            url = checked_url(self._url)
            return url, self._token or self._token_of(url)
        found = address.find(self._state)
        if found is None:
            where = f" in {str(self._state)!r}" if self._state is not None else ""
            raise Unreachable(
                f"no cluster is served{where}: start one by `melodeon serve`, or name one by {URL} and {TOKEN}"
            )
        return checked_url(found.url), self._token or found.token()

    def _token_of(self, url: str) -> str | None:
        """The token of a service of this machine that was named by its address alone."""
        found = address.find(self._state)
        return found.token() if found is not None and found.url.rstrip("/") == url else None


class Patience(msgspec.Struct, frozen=True):
    """How long there is left to try."""

    until: float

    @property
    def over(self) -> bool:
        """Whether an attempt that fails now is the last; one may take longer than there was left."""
        return time.monotonic() >= self.until


def checked_url(text: str) -> str:
    """A service's address as it is used."""
    try:
        url = httpx.URL(text.strip())
        url.host.encode("idna")  # as a socket will: no part of a name may be empty, nor too long
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL("")
    is_whole = url.scheme in ("http", "https") and url.host and (url.port is None or 0 < url.port <= LAST_PORT)
    if not is_whole or len(text.split()) > 1:
        raise UsageError(f"{text!r} is no address of a service: write one such as http://127.0.0.1:8470")
    return str(url).rstrip("/")


def given(params: Mapping[str, object] | None) -> dict[str, Any]:
    """Parameters without those that were left out."""
    found = {name: value for name, value in (params or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}


def check(status: int, body: bytes, base: str) -> None:
    """Raise what the service refused with."""
    if status < 400:
        if status >= 300:
            raise Unreachable(f"{base} points elsewhere (status {status}): it is no service of melodeon")
        return
    if status == UNKNOWN_TOKEN:
        raise UsageError(f"{base} does not know your token: set {TOKEN} to the one in its state folder's file `token`")
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.MsgspecError:
        raise Unreachable(
            f"{base} answers with status {status}, and not as melodeon does: see what runs there"
        ) from None
    raise BY_CODE.get(problem.code, MelodeonError)(problem.error)
