"""Who is asking: a token in a header, or the pages' cookie that stands for one.

    STATE/token        the operator's token, readable by its owner alone; made at the first start
    STATE/users.json   optional, others' tokens as SHA-256: {"users": {"ann": {"token_sha256": "..."}}}

Only digests are kept in memory, and comparing takes as long for a wrong token as for a right one. A cookie is a signed
statement "the holder of this token, until then": it is not the token, survives a restart, and ends when the token is
changed. `users.json` is read again when it changes, so that somebody can be shut out without a restart.
"""

import getpass
import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser
from starlette.responses import Response

from melodeon.control.api.errors import Unauthorized
from melodeon.control.trouble import tell
from melodeon.core.errors import UsageError
from melodeon.sched.quota import Quota, Quotas

COOKIE_S = 30 * 86_400
"""How long a browser stays signed in."""
USER_KEY = "melodeon.user"
"""Where the guard leaves the user in a request's scope."""
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")
DIGEST = re.compile(r"[0-9a-f]{64}")
BEARER = re.compile(r"bearer +([\x21-\x7e]{1,512})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody whose token was right."""

    name: str
    operator: bool = False
    """May change everybody's jobs, the policy and the nodes."""


class Caller(NamedTuple):
    """A user, and whether a browser said so by itself: then the page that asked must be ours."""

    user: User
    by_cookie: bool


class Person(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `users.json`."""

    token_sha256: str
    operator: bool = False
    active_jobs: int | None = None
    jobs_per_day: int | None = None


class _People(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[str, Person] = {}


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Auth:
    """The users of one service, and what proves that somebody is one of them."""

    def __init__(self, token: str, *, operator: str = "operator", users: Path | None = None) -> None:
        self._secret = hmac.digest(token.encode(), b"melodeon cookies", "sha256")
        self._owner = (digest_of(token), User(name=operator, operator=True))
        self._path, self._read_as = users, _mark(users)
        self._people: Mapping[str, Person] = read_people(users) if users is not None else {}
        self._known = self._all()
        self.cookie = f"melodeon-{hashlib.sha256(self._secret).hexdigest()[:8]}"
        """The cookie's name: another service on this machine has another."""

    @classmethod
    def load(cls, state_dir: Path) -> "Auth":
        """The users of a state folder; the operator's token is made if there is none."""
        return cls(own_token(state_dir), operator=this_user(), users=state_dir / "users.json")

    # --- who is it? ---

    def by_token(self, token: str) -> User | None:
        """The user with this token."""
        digest, found = digest_of(token), None
        for known, user in self._current():
            if hmac.compare_digest(known, digest):
                found = user
        return found

    def by_cookie(self, value: str) -> User | None:
        """The user for whom this cookie was made."""
        expires, _, signature = value.partition(".")
        if not expires.isdecimal() or len(expires) > 12 or int(expires) < time.time():
            return None
        given, found = signature.encode(errors="replace"), None
        for known, user in self._current():
            if hmac.compare_digest(self._signature(expires, known).encode(), given):
                found = user
        return found

    def identify(self, headers: Headers) -> Caller | None:
        """Whoever asks, by the header or, without one, by the cookie."""
        given = headers.get("authorization")
        if given is not None:
            match = BEARER.fullmatch(given)
            user = self.by_token(match[1]) if match else None
            return Caller(user, by_cookie=False) if user else None
        value = cookie_parser(headers.get("cookie", "")).get(self.cookie)
        user = self.by_cookie(value) if value else None
        return Caller(user, by_cookie=True) if user else None

    def require(self, request: HTTPConnection) -> User:
        """Whoever asks, or `Unauthorized`."""
        found = request.scope.get(USER_KEY)
        if isinstance(found, User):
            return found
        caller = self.identify(request.headers)
        if caller is None:
            raise Unauthorized
        return caller.user

    # --- browsers ---

    def sign_in(self, response: Response, token: str) -> User:
        """Have the browser stay signed in as the token's user."""
        user = self.by_token(token)
        if user is None:
            raise Unauthorized
        expires = str(int(time.time()) + COOKIE_S)
        value = f"{expires}.{self._signature(expires, digest_of(token))}"
        response.set_cookie(self.cookie, value, max_age=COOKIE_S, path="/", httponly=True, samesite="strict")
        return user

    def sign_out(self, response: Response) -> None:
        """Have the browser forget."""
        response.delete_cookie(self.cookie, path="/", httponly=True, samesite="strict")

    # --- inside ---

    def quotas(self, default: Quota) -> Quotas:
        """How many jobs each may have now; operators as many as they like."""
        self._current()
        by_user = {
            name: Quota()
            if person.operator
            else Quota(
                active_jobs=default.active_jobs if person.active_jobs is None else person.active_jobs,
                jobs_per_day=default.jobs_per_day if person.jobs_per_day is None else person.jobs_per_day,
            )
            for name, person in self._people.items()
        }
        return Quotas(default=default, by_user=((self._owner[1].name, Quota()), *by_user.items()))

    def _signature(self, expires: str, digest: str) -> str:
        return hmac.new(self._secret, f"{expires} {digest}".encode(), "sha256").hexdigest()

    def _all(self) -> tuple[tuple[str, User], ...]:
        others = ((p.token_sha256, User(name=name, operator=p.operator)) for name, p in self._people.items())
        return (*others, self._owner)

    def _current(self) -> tuple[tuple[str, User], ...]:
        if (mark := _mark(self._path)) != self._read_as:
            self._read_as = mark
            try:
                self._people = read_people(self._path) if self._path is not None else {}
                self._known = self._all()
            except UsageError as error:
                # Half written or wrong: those who were known stay so, and the operator is told.
                tell(f"{error}; the users are those of before")
        return self._known


def own_token(state_dir: Path) -> str:
    """The operator's token, made if there is none; refused where others could read it."""
    path = state_dir / "token"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written ({error.strerror}): choose another --state") from error
    token = secrets.token_urlsafe(32)
    with open(fd, "w") as file:  # noqa: PTH123 - a descriptor, so that the mode is right from the start
        file.write(token + "\n")
    return token


def _read_token(path: Path) -> str:
    try:
        token, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, ValueError) as error:
        raise UsageError(f"the token in {str(path)!r} cannot be read ({error}): make it yours, or remove it") from error
    if mode & 0o077:
        raise UsageError(f"{str(path)!r} can be read by others: remove it, and a new token is made")
    if len(token) < 16 or not BEARER.fullmatch(f"Bearer {token}"):
        raise UsageError(f"{str(path)!r} holds no token of 16 letters or more: remove it, and one is made")
    return token


def read_people(path: Path) -> Mapping[str, Person]:
    """The users of a `users.json`; none without a file."""
    try:
        raw, mode = path.read_bytes(), path.stat().st_mode
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error.strerror}): it lists the users") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{str(path)!r} can be written by others: `chmod go-w` it")
    try:
        people = msgspec.json.decode(raw, type=_People).users
    except msgspec.MsgspecError as error:
        raise UsageError(
            f'{str(path)!r} does not list users ({error}): write {{"users": {{"ann": {{"token_sha256": "..."}}}}}}'
        ) from error
    for name, person in people.items():
        if not USER_NAME.fullmatch(name):
            raise UsageError(f"{str(path)!r}: user {name!r} must be up to 63 letters, digits, dots, @, _ and dashes")
        if not DIGEST.fullmatch(person.token_sha256):
            raise UsageError(
                f"{str(path)!r}: token_sha256 of {name!r} must be 64 small hexadecimal digits: "
                "`printf %s TOKEN | sha256sum` prints it"
            )
        Quota(active_jobs=person.active_jobs, jobs_per_day=person.jobs_per_day)
    return people


def this_user() -> str:
    """The name of whoever started the service."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid{os.getuid()}"
    return name if USER_NAME.fullmatch(name) else "operator"


def _mark(path: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file does."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
