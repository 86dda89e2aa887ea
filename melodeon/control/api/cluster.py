"""Routes of the cluster: nodes, events, charts, the policy, what-if, figures for Prometheus."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response

from melodeon import __version__
from melodeon.control.api import schemas
from melodeon.control.api.metrics import CONTENT_TYPE, render
from melodeon.control.api.requests import By, ByOperator, Here, Table, job_file, only, said
from melodeon.control.api.schemas import PREFIX, Health, PolicyInfo, body, problems
from melodeon.control.api.stream import EventStream
from melodeon.core.errors import UsageError
from melodeon.core.service import EventInfo, NodeInfo, Overview, Timeline, WhatIf

LAST_SEQ = (1 << 53) - 1
LAST_AT = 1e11
"""Seconds since 1970 that anybody means."""
HOUR_S = 3600.0

router = APIRouter(prefix=PREFIX, tags=["cluster"])
root_router = APIRouter(include_in_schema=False)

At = Query(ge=0, le=LAST_AT, allow_inf_nan=False)


@router.get("/overview", response_model=Overview, responses=problems())
async def overview(here: Here, _: By) -> Response:
    """The cluster now."""
    return said(here.controller.overview())


@router.get("/nodes", response_model=tuple[NodeInfo, ...], responses=problems())
async def nodes(here: Here, _: By) -> Response:
    """The nodes, and who holds their devices."""
    return said(here.controller.nodes())


@router.post(
    "/nodes/{node}",
    response_model=NodeInfo,
    responses=problems(403, 404, 413, 422, 503),
    openapi_extra=body(schemas.NODE),
)
async def set_node(here: Here, user: ByOperator, node: Annotated[str, Path(max_length=200)], table: Table) -> Response:
    """Say that a node is up or down, or to be left empty. For operators."""
    only(table, "up", "drained")
    for name, value in table.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name}: {value!r} must be true or false")
    if not table:
        raise UsageError("nothing is said of the node: give up or drained, true or false")
    up, drained = table.get("up"), table.get("drained")
    return said(await here.controller.set_node(node, up=up, drained=drained, user=user.name))


@router.get("/events", response_model=tuple[EventInfo, ...], responses=problems(422))
async def events(
    here: Here,
    _: By,
    after: Annotated[int, Query(ge=0, le=LAST_SEQ)] = 0,
    job: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """The cluster's log after a number, oldest first."""
    return said(here.controller.events(after=after, job=job or None, limit=limit))


@router.get(
    "/stream",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The log as it grows"},
        **problems(422, 503),
    },
)
async def stream(
    here: Here,
    _: By,
    after: Annotated[int | None, Query(ge=0, le=LAST_SEQ)] = None,
    job: Annotated[str | None, Query(max_length=200)] = None,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> Response:
    """The cluster's log as it grows: `data:` is an event, `id:` its number. Goes on after `Last-Event-ID`."""
    if last:
        if not last.isascii() or not last.isdecimal() or int(last) > LAST_SEQ:
            raise UsageError(f"Last-Event-ID: {last!r} must be an event's number")
        after = int(last)
    return EventStream(here.hub, here.controller, after, job or None)


@router.get("/timeline", response_model=Timeline, responses=problems(422))
async def timeline(
    here: Here, _: By, since: Annotated[float | None, At] = None, until: Annotated[float | None, At] = None
) -> Response:
    """Who held which devices between two moments; left out: the last hour."""
    end = here.controller.overview().now if until is None else until
    begin = max(0.0, end - HOUR_S) if since is None else since
    if end < begin:
        raise UsageError(f"until: {end} is before since, {begin}: give the earlier moment first")
    return said(here.controller.timeline(begin, end))


@router.get("/policy", response_model=PolicyInfo, responses=problems())
async def policy(here: Here, _: By) -> Response:
    """The policy that decides."""
    return said(PolicyInfo(policy=here.controller.overview().policy))


@router.put(
    "/policy", response_model=PolicyInfo, responses=problems(403, 413, 422, 503), openapi_extra=body(schemas.POLICY)
)
async def set_policy(here: Here, user: ByOperator, table: Table) -> Response:
    """Decide by another policy from now on. For operators."""
    name = only(table, "policy").get("policy")
    if not isinstance(name, str):
        raise UsageError(f"policy: {name!r} must be a policy's name, such as elasticflow")
    return said(PolicyInfo(policy=await here.controller.set_policy(name, user=user.name)))


@router.post("/whatif", response_model=WhatIf, responses=problems(413, 422, 503), openapi_extra=body(schemas.WHAT_IF))
async def what_if(here: Here, user: By, table: Table) -> Response:
    """The cluster played forward from now, under another policy, or with one more job. Changes nothing."""
    only(table, "policy", "job")
    name, raw = table.get("policy"), table.get("job")
    if name is not None and not isinstance(name, str):
        raise UsageError(f"policy: {name!r} must be a policy's name, such as elasticflow")
    spec = None if raw is None else await asyncio.to_thread(job_file, here, raw)
    async with here.playing:
        return said(await here.controller.whatif(name, spec, user=user.name))


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Figures for Prometheus"},
        **problems(),
    },
)
@root_router.get("/metrics")
async def metrics(here: Here, _: By) -> Response:
    """Figures for Prometheus."""
    return Response(render(here.requests.registry), media_type=CONTENT_TYPE)


@router.get("/healthz", response_model=Health, responses=problems())
@root_router.get("/healthz")
async def health(_: By) -> Response:
    """That the service is there."""
    return said(Health(status="ok", version=__version__))
