"""The application: the API's routes, the pages where they are installed, and the door around both."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from melodeon import __version__
from melodeon.control.api import cluster, errors, jobs
from melodeon.control.api.audit import Audit
from melodeon.control.api.auth import Auth
from melodeon.control.api.guard import Guard, Hosts, wants_page
from melodeon.control.api.metrics import ClusterCollector, Requests
from melodeon.control.api.paths import Roots
from melodeon.control.api.requests import Service
from melodeon.control.api.schemas import PREFIX
from melodeon.control.api.stream import Hub
from melodeon.control.controller import Controller
from melodeon.core.errors import MelodeonError

PAGES = "melodeon.control.web"


def make_app(
    controller: Controller,
    auth: Auth,
    *,
    host: str,
    port: int,
    hosts: Sequence[str] = (),
    roots: Sequence[Path] | None = None,
    audit: Path | None = None,
) -> FastAPI:
    """The service over HTTP. `hosts` are further names by which it may be called, `audit` the file of the audit log.

    `app.state.hub.close()` lets all readers of the stream go, so that a server can stop.
    """
    requests, hub = Requests(), Hub(controller)
    requests.registry.register(ClusterCollector(controller, hub))
    app = FastAPI(
        title="Melodeon",
        summary="Say what to train and by when.",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": "/"}],
    )
    places = Roots(roots) if roots is not None else Roots.default()
    app.state.service = Service(controller=controller, auth=auth, roots=places, hub=hub, requests=requests)
    app.state.hub, app.state.port = hub, port
    pages = _pages()
    if pages is not None:
        app.include_router(pages.router(controller, auth))
    app.include_router(cluster.root_router)
    app.include_router(_login(auth))
    app.include_router(jobs.router)
    app.include_router(cluster.router)
    error_page: errors.ErrorPage | None = getattr(pages, "error_page", None)
    _say_errors(app, error_page)
    _describe(app)
    app.add_middleware(
        Guard, auth=auth, hosts=Hosts(host, hosts), audit=Audit(audit), requests=requests, error_page=error_page
    )
    return app


def _pages() -> ModuleType | None:
    """The dashboard, where it is installed: `router(controller, auth)`, and `error_page(request, status, sentence)`."""
    found = find_spec(PAGES)
    return import_module(PAGES) if found is not None and found.origin is not None else None


def _login(auth: Auth) -> APIRouter:
    """`/login?token=...`, the link that the service prints. Pages may have a better one, which then comes first."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def login(token: str = Query("", max_length=512)) -> Response:
        response = RedirectResponse("/", status_code=303)
        auth.sign_in(response, token)
        return response

    return router


def _say_errors(app: FastAPI, page: errors.ErrorPage | None) -> None:
    """One shape for every error; a browser gets a page, where there are any."""

    def shown(request: Request, response: Response, text: str) -> Response:
        if page is not None and wants_page(request.scope):
            return page(request, response.status_code, text)
        return response

    async def of_tree(request: Request, error: Exception) -> Response:
        assert isinstance(error, MelodeonError)
        return shown(request, errors.of_tree(error), str(error))

    async def of_framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = errors.of_framework(error, request.url.path, request.method)
        return shown(request, answer, "there is nothing here" if error.status_code == 404 else str(error.detail))

    async def of_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return shown(request, errors.of_validation(error), "the address is not right")

    app.add_exception_handler(MelodeonError, of_tree)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, of_validation)


def _describe(app: FastAPI) -> None:
    """Say in the description that every route needs a token."""
    made = app.openapi

    def described() -> dict[str, Any]:
        schema = made()
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        return schema

    app.openapi = described  # type: ignore[method-assign] # the way that the framework names
