"""Routes of jobs: submit, list, look at, change, end."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from melodeon.control.api import schemas
from melodeon.control.api.requests import (
    By,
    ByOperator,
    Here,
    JobName,
    RequestId,
    Table,
    job_file,
    only,
    own,
    said,
)
from melodeon.control.api.schemas import PREFIX, body, problems
from melodeon.core.errors import UsageError
from melodeon.core.service import JobInfo, LogChunk, Phase, Sentence, Series, Submission

LONGEST_WAIT_S = 60.0

router = APIRouter(prefix=f"{PREFIX}/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=201,
    response_model=Submission,
    responses={
        200: {"model": Submission, "description": "A dry run, or a job that was turned away"},
        **problems(413, 422, 503),
    },
    openapi_extra=body(schemas.JOB),
)
async def submit(
    request: Request, here: Here, user: By, table: Table, request_id: RequestId, dry_run: bool = False
) -> Response:
    """Submit a job, and hear at once whether it is admitted; with `dry_run`, hear what would be."""
    spec = await asyncio.to_thread(job_file, here, table)
    made = await here.controller.submit(spec, user=user.name, request_id=request_id, dry_run=dry_run)
    request.state.job = made.job.id
    return said(made, 200 if dry_run or made.admitted is False else 201)


@router.get("", response_model=tuple[JobInfo, ...], responses=problems(404, 422))
async def jobs(
    here: Here,
    _: By,
    phase: Phase | None = None,
    user: Annotated[str | None, Query(max_length=100)] = None,
    after: Annotated[str | None, Query(max_length=200, description="The last job of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Jobs in the order in which they were submitted."""
    return said(here.controller.jobs(phase=phase, user=user, after=after or None, limit=limit))


@router.get("/{job}", response_model=JobInfo, responses=problems(404, 422))
async def job(here: Here, _: By, job: JobName) -> Response:
    """One job, by its id, the beginning of it, a name that it alone has, or `last`."""
    return said(here.controller.find(job))


@router.patch(
    "/{job}",
    response_model=Submission,
    responses=problems(403, 404, 413, 422, 503),
    openapi_extra=body(schemas.CHANGES),
)
async def edit(here: Here, user: By, job: JobName, table: Table) -> Response:
    """Change fields of a job's file; it is judged again, and stays as it was when that is refused."""
    own(here, job, user)
    return said(await here.controller.edit(job, table, user=user.name))


@router.post("/{job}/cancel", response_model=JobInfo, responses=problems(403, 404, 413, 503))
async def cancel(here: Here, user: By, job: JobName, request_id: RequestId) -> Response:
    """End a job for good."""
    own(here, job, user)
    return said(await here.controller.cancel(job, user=user.name, request_id=request_id))


@router.post(
    "/{job}/scale",
    response_model=JobInfo,
    responses=problems(403, 404, 413, 422, 503),
    openapi_extra=body(schemas.SCALE),
)
async def scale(here: Here, user: ByOperator, job: JobName, table: Table) -> Response:
    """Fix a job's number of workers, or leave it to the policy again (null). For operators."""
    if "workers" not in only(table, "workers"):
        raise UsageError("field 'workers' is missing: give a number, or null for what the policy decides")
    workers = table["workers"]
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers: {workers!r} must be a whole number from 1 on, or null")
    return said(await here.controller.scale(job, workers, user=user.name))


@router.get("/{job}/logs", response_model=LogChunk, responses=problems(404, 422))
async def logs(
    here: Here,
    _: By,
    job: JobName,
    start: Annotated[
        str, Query(alias="from", max_length=8000, description="`next` of the piece before; empty: the beginning.")
    ] = "",
    worker: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0,
) -> Response:
    """A piece of a job's output; waits for some, up to `wait_s`."""
    return said(await here.controller.logs(job, start, worker, wait_s))


@router.get("/{job}/story", response_model=tuple[Sentence, ...], responses=problems(404, 422))
async def story(here: Here, _: By, job: JobName) -> Response:
    """What happened to a job and why, in sentences."""
    return said(here.controller.story(job))


@router.get("/{job}/series", response_model=Series, responses=problems(404, 422))
async def series(here: Here, _: By, job: JobName) -> Response:
    """What a job did over time: columns for charts."""
    return said(here.controller.series(job))
