"""What all pages stand on: templates, who is looking, what is said back to them, and errors as pages."""

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from melodeon import __version__
from melodeon.control.api.auth import Auth, User
from melodeon.control.api.errors import Forbidden
from melodeon.control.controller import Controller
from melodeon.control.web import words
from melodeon.control.web.assets import asset_url
from melodeon.core.errors import UsageError
from melodeon.core.service import OVER
from melodeon.core.text import plain
from melodeon.sim.clock import length

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 20


@dataclass(frozen=True, slots=True)
class Said:
    """What came of something that somebody asked for."""

    text: str
    tone: str = "good"
    next: str = ""
    """A command to go on with."""


def _printed(value: object) -> object:
    """What a template prints: text without what could reorder or hide the rest of its line."""
    return plain(value) if type(value) is str else value


@cache
def templates() -> Environment:
    """Every value is escaped, and one that is missing is a mistake."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printed,
    )
    made.filters |= {
        "time": words.time_tag,
        "lasting": length,
        "amount": words.amount,
        "between": words.between,
        "counted": words.counted,
        "colour": words.colour_of,
        "segment": lambda text: quote(text, safe=""),
    }
    made.globals |= {"asset": asset_url, "version": __version__, "OVER": OVER}
    return made


def is_fragment(request: Request) -> bool:
    """Whether a page's script asks, and shows the answer in a part of the page."""
    return request.headers.get("hx-request") == "true"


class Site:
    """The pages of one controller."""

    def __init__(self, controller: Controller, auth: Auth) -> None:
        self.controller, self.auth = controller, auth

    @property
    def now(self) -> float:
        """The controller's time."""
        return self.controller.engine.clock.now()

    def user(self, request: Request) -> User:
        """Whoever looks."""
        return self.auth.require(request)

    def operator(self, request: Request) -> User:
        """Whoever looks, if they may change everything."""
        user = self.user(request)
        if not user.operator:
            raise Forbidden(f"user {user.name!r} is no operator, who alone may do this: ask one")
        return user

    def render(self, request: Request, name: str, **values: Any) -> Response:
        """A page or a part of one."""
        now = self.now
        told = {
            "user": self.user(request),
            "now": now,
            "zone": words.zone(now)[0],
            "seq": self.controller.engine.seq,
            "said": None,
            "stream_job": "",
        }
        return HTMLResponse(templates().get_template(name).render(told | values))

    def say(self, said: Said) -> Response:
        """The answer to a form for the part of the page where answers stand; what is live looks again."""
        html = templates().get_template("said.html").render(said=said)
        headers = {"HX-Trigger": "news", "HX-Retarget": "#said", "HX-Reswap": "innerHTML"}
        return HTMLResponse(html, headers=headers)


def error_page(request: Request, status: int, sentence: str) -> Response:
    """An error as a page, or as a sentence in the page that asked; without a token: the door."""
    if is_fragment(request):
        html = templates().get_template("said.html").render(said=Said(sentence, "bad"))
        headers = {"HX-Retarget": "#said", "HX-Reswap": "innerHTML"}
        return HTMLResponse(html, status, {"HX-Refresh": "true"} if status == 401 else headers)
    if status == 401:
        return login_page(status=401)
    title = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    html = templates().get_template("error.html").render(title=title, status=status, sentence=sentence)
    return HTMLResponse(html, status)


def login_page(sentence: str = "", *, status: int = 200) -> Response:
    """Where somebody gives a token."""
    return HTMLResponse(templates().get_template("login.html").render(sentence=sentence), status)


async def form(request: Request) -> dict[str, str]:
    """The fields of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if not body:
        return {}
    if kind != FORM:
        raise UsageError(f"content type {kind[:100]!r} is not a form's: send {FORM}")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise UsageError("the form cannot be read: open the page again and send it from there") from None
    return {name: value.strip() for name, value in pairs}
