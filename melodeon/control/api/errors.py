"""Errors over HTTP: one shape, `{"error": "a sentence", "code": 2}`, where the code is the exit code of the error tree.

    401 Unauthorized   403 Forbidden   404 NotFound   422 UsageError   503 Unreachable, and all else of the tree

What is no error of the tree is a mistake of ours: 500, and the log has it.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from melodeon.core.errors import MelodeonError, NotFound, UsageError
from melodeon.core.spec import READERS
from melodeon.core.text import plain

FIELD = re.compile(r"field '([^']*)'|([a-z_]+)(?: workers| rate)?:")
LONGEST = 2000
"""Letters of a sentence that are said: what people send comes back in it."""

ErrorPage = Callable[[Request, int, str], Response]
"""What a browser is shown instead of JSON: (request, status, sentence)."""


class Forbidden(MelodeonError):
    """Known, but not allowed to."""

    exit_code = 2


class Unauthorized(MelodeonError):
    """No token, or a wrong one."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "a token is needed: send `Authorization: Bearer TOKEN` with the one in the state folder's file `token`, or "
            "open the link that `melodeon serve` prints"
        )


def status_of(error: MelodeonError) -> int:
    """The HTTP status of an error of the tree."""
    for kind, status in ((Unauthorized, 401), (Forbidden, 403), (UsageError, 422), (NotFound, 404)):
        if isinstance(error, kind):
            return status
    return 503


def problem(status: int, text: str, code: int, *, field: str | None = None, headers: Any = None) -> Response:
    """An error as the service says it."""
    values: dict[str, object] = {"error": text if len(text) <= LONGEST else text[: LONGEST - 3] + "...", "code": code}
    if field is not None:
        values["field"] = field
    return Response(_encoded(values), status, headers, "application/json")


def _encoded(values: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(values)
    except UnicodeEncodeError:  # half a character that somebody sent
        return msgspec.json.encode({**values, "error": plain(values["error"])})


def of_tree(error: MelodeonError) -> Response:
    """An error of the tree."""
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else None
    return problem(status, str(error) or type(error).__name__, error.exit_code, field=field_of(error), headers=headers)


def field_of(error: MelodeonError) -> str | None:
    """The field of a job's file that a sentence begins with."""
    match = FIELD.match(str(error)) if isinstance(error, UsageError) else None
    name = match and (match[1] or match[2])
    return name if name in READERS or (match and match[1]) else None


def of_framework(error: HTTPException, path: str, method: str) -> Response:
    """What the framework refuses: a path or a method that is not there."""
    if error.status_code == 404:
        return problem(404, f"there is nothing at {path!r}: see /api/v1/openapi.json", NotFound.exit_code)
    text = f"{method} is not possible at {path!r}" if error.status_code == 405 else str(error.detail)
    return problem(error.status_code, text, UsageError.exit_code, headers=error.headers)


def of_validation(error: RequestValidationError) -> Response:
    """A parameter that is not what it must be."""
    found: Sequence[Any] = error.errors()
    first = found[0] if found else {"loc": ("request",), "msg": "it cannot be read"}
    name = str(first["loc"][-1])
    given = first.get("input")
    value = f" {given!r}" if isinstance(given, str | int | float) else ""
    return problem(422, f"{name}:{value[:200]} is not possible: {first['msg']}", UsageError.exit_code, field=name)
