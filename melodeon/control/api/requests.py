"""What the routes have in common: who asks, what they sent, and how a value is said."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header, Path
from starlette.requests import Request
from starlette.responses import Response

from melodeon.control.api.auth import Auth, User
from melodeon.control.api.errors import Forbidden
from melodeon.control.api.metrics import Requests
from melodeon.control.api.paths import Roots
from melodeon.control.api.stream import Hub
from melodeon.control.controller import Controller
from melodeon.core.errors import UsageError
from melodeon.core.spec import Spec, read_spec

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
DEEPEST = 32
"""Tables within tables: nothing that is sent here needs more, and deeper ones cost more than they tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the routes stand on."""

    controller: Controller
    auth: Auth
    roots: Roots
    hub: Hub
    requests: Requests
    playing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Clusters that are played forward at one time."""


async def _service(request: Request) -> Service:
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


async def _user(request: Request) -> User:
    return (await _service(request)).auth.require(request)


async def _operator(request: Request) -> User:
    user = await _user(request)
    if not user.operator:
        raise Forbidden(f"user {user.name!r} is no operator, who alone may do this: ask one")
    return user


async def _table(request: Request) -> dict[str, Any]:
    return decoded(await request.body())


async def _request_id(
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", description="The same key again gives the same answer, and does nothing."),
    ] = None,
) -> str | None:
    if key is not None and not REQUEST_ID.fullmatch(key):
        raise UsageError(f"Idempotency-Key: {key[:200]!r} must be 1 to 200 printable letters without spaces")
    return key


Here = Annotated[Service, Depends(_service)]
By = Annotated[User, Depends(_user)]
ByOperator = Annotated[User, Depends(_operator)]
Table = Annotated[dict[str, Any], Depends(_table)]
RequestId = Annotated[str | None, Depends(_request_id)]
JobName = Annotated[str, Path(description="The job's id.", max_length=200)]


def decoded(raw: bytes) -> dict[str, Any]:
    """A body that must be a JSON table."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"the body is no JSON ({str(error)[:200]}): send a table of fields") from None
    if not isinstance(value, dict):
        raise UsageError('the body must be a JSON table of fields, such as {"name": "cnn", "run": "train.py"}')
    _check_text(value, DEEPEST)
    return value


def _check_text(value: object, depth: int) -> None:
    """Half characters can be sent as escapes, and be written nowhere; very deep tables are nobody's."""
    if depth == 0:
        raise UsageError(f"the body has more than {DEEPEST} tables within each other: send a flatter one")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{value[:100]!r} is not text in Unicode: send whole characters") from None
    elif isinstance(value, dict):
        for name, part in value.items():
            _check_text(name, depth - 1)
            _check_text(part, depth - 1)
    elif isinstance(value, list):
        for part in value:
            _check_text(part, depth - 1)


def only(table: Mapping[str, Any], *known: str) -> Mapping[str, Any]:
    """A body with no other fields than these."""
    for name in table:
        if name not in known:
            raise UsageError(f"field {name!r} is not known: the fields are {', '.join(known)}")
    return table


def job_file(here: Service, raw: object) -> Spec:
    """A job as it was sent, in a folder where jobs may run."""
    return here.roots.checked(read_spec(raw))


def own(here: Service, job: str, user: User) -> None:
    """Refuse to change somebody else's job."""
    found = here.controller.job(job)
    if found.user != user.name and not user.operator:
        raise Forbidden(f"job {job!r} belongs to {found.user!r}, and you are {user.name!r}: ask them, or an operator")


def said(value: object, status: int = 200) -> Response:
    """A value as JSON. Written by msgspec: a list of a thousand jobs must not hold up the controller."""
    return Response(ENCODE(value), status, media_type="application/json")


ENCODE: Callable[[object], bytes] = msgspec.json.Encoder(decimal_format="number").encode
