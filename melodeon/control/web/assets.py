"""Scripts, styles and pictures, read once and kept: a name that is not among them is not a path to look for.

Pages name a file with its digest, so that browsers keep it for as long as it stays the same.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from melodeon.core.errors import NotFound

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """All files that pages may ask for, by name."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            body = path.read_bytes()
            name = path.relative_to(FOLDER).as_posix()
            found[name] = Asset(body, TYPES[path.suffix], sha256(body).hexdigest()[:16])
    return found


def asset_url(name: str) -> str:
    """The address of a file as it is now."""
    return f"/static/{name}?v={assets()[name].digest}"


async def static(request: Request, name: str) -> Response:
    """A file."""
    asset = assets().get(name)
    if asset is None:
        raise NotFound("there is no such file here: reload the page")
    tag = f'"{asset.digest}"'
    as_named = request.query_params.get("v") == asset.digest
    headers = {"ETag": tag, "Cache-Control": "public, max-age=31536000, immutable" if as_named else "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.type)
