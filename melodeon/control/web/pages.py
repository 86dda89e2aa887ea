"""The pages, and the parts of them that are asked for again when something happened."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from melodeon.control.api.auth import Auth
from melodeon.control.controller import Controller
from melodeon.control.events import FACTS
from melodeon.control.web import look, views
from melodeon.control.web.actions import Actions
from melodeon.control.web.assets import static
from melodeon.control.web.charts import chart_data
from melodeon.control.web.gantt import gantt
from melodeon.control.web.shown import cluster_page, job_page
from melodeon.control.web.site import Site
from melodeon.core.errors import UsageError
from melodeon.core.service import Phase
from melodeon.sched.registry import POLICIES

WINDOW_S, SHORTEST_S = 900.0, 30.0
"""What the chart shows at first: a quarter of an hour, or what there is."""
AHEAD, MOST_AHEAD = 0.02, 0.3
"""The part of it that is yet to come: at least, and at most where something is planned. The script has them too."""
LAST_AT = 1e11
PAGE = 100
KINDS = tuple(sorted(str(fact.__struct_config__.tag) for fact in FACTS))

At = Annotated[float | None, Query(ge=0, le=LAST_AT, allow_inf_nan=False)]
JobName = Annotated[str, Path(max_length=200)]
Name = Annotated[str, Query(max_length=200)]


def router(controller: Controller, auth: Auth) -> APIRouter:
    """All routes of the dashboard. Who may ask was checked at the door; who may change what is checked here."""
    made = APIRouter(include_in_schema=False)
    site = Site(controller, auth)
    pages, actions = Pages(site), Actions(site)
    made.add_api_route("/static/{name:path}", static, methods=["GET"])
    looked_at: dict[str, Callable[..., Any]] = {
        "/": pages.overview,
        "/fragments/overview": pages.overview_parts,
        "/fragments/gantt": pages.gantt_part,
        "/fragments/cluster": pages.cluster_part,
        "/fragments/events": pages.events_part,
        "/jobs": pages.jobs,
        "/jobs/{job}": pages.job,
        "/jobs/{job}/facts": pages.job_facts,
        "/jobs/{job}/actions": pages.job_actions,
        "/jobs/{job}/story": pages.job_story,
        "/jobs/{job}/chart.json": pages.job_chart,
        "/cluster": pages.cluster,
        "/what-if": pages.what_if,
        "/events": pages.events,
        "/login": actions.open_link,
    }
    for path, page in looked_at.items():
        made.add_api_route(path, page, methods=["GET"])
    done: dict[str, Callable[..., Any]] = {
        "/login": actions.sign_in,
        "/logout": actions.sign_out,
        "/jobs/{job}/cancel": actions.cancel,
        "/jobs/{job}/scale": actions.scale,
        "/jobs/{job}/edit": actions.edit,
        "/nodes/{node}": actions.set_node,
        "/policy": actions.set_policy,
        "/what-if": actions.what_if,
    }
    for path, action in done.items():
        made.add_api_route(path, action, methods=["POST"])
    return made


class Pages:
    """What can be looked at."""

    def __init__(self, site: Site) -> None:
        self._site, self._controller = site, site.controller

    # --- overview ---

    async def overview(self, request: Request) -> Response:
        """The cluster at a glance."""
        since, until = self._window(None, None)
        chart = self._chart(since, until, 960)
        return self._site.render(request, "overview.html", chart=chart, **self._overview())

    async def overview_parts(self, request: Request) -> Response:
        """Its figures and its table."""
        return self._site.render(request, "overview_parts.html", **self._overview())

    async def gantt_part(
        self, since: At = None, until: At = None, width: Annotated[int, Query(ge=240, le=4000)] = 960
    ) -> Response:
        """The chart of a window of time, for a screen's width."""
        begin, end = self._window(since, until)
        return Response(self._chart(begin, end, width), media_type="text/html; charset=utf-8")

    def _overview(self) -> dict[str, object]:
        controller, now = self._controller, self._site.now
        began = max(now - WINDOW_S, controller.engine.state.origin or now)
        line = controller.timeline(began, now)
        share = views.used_share(line.spans, line.capacity, began, now)
        overview = controller.overview()
        tiles = views.tiles(overview, share, now - began, look.deadlines(controller), held=look.held(controller))
        return {"tiles": tiles, "chosen": look.chosen(controller, now), "phases": overview.jobs}

    def _window(self, since: float | None, until: float | None) -> tuple[float, float]:
        now = self._site.now
        if since is None or until is None:
            age = now - (self._controller.engine.state.origin or now)
            span = min(WINDOW_S, max(SHORTEST_S, age * 1.05))
            last = max((share.ended_at or now for share in self._controller.engine.planned.shares), default=now)
            ahead = min(MOST_AHEAD, max(AHEAD, (last - now) / span))
            return now - span * (1 - ahead), now + span * ahead
        if until - since < 0.5:
            raise UsageError(f"a window of {until - since:.3g} s is too short: show at least half a second")
        return since, until

    def _chart(self, since: float, until: float, width: int) -> str:
        controller, now = self._controller, self._site.now
        first = controller.engine.state.origin or now
        return gantt(controller.timeline(since, until), controller.nodes(), now=now, first=first, width=width)

    # --- jobs ---

    async def jobs(
        self, request: Request, phase: Name = "", user: Name = "", after: Name = "", find: Name = ""
    ) -> Response:
        """All jobs, a page at a time; or the one that somebody looks for."""
        if find:
            return RedirectResponse(f"/jobs/{self._controller.find(find.strip()).id}", status_code=303)
        if phase and phase not in set(Phase):
            raise UsageError(f"phase {phase!r} is not known: the phases are {', '.join(Phase)}")
        found = self._controller.jobs(
            phase=Phase(phase) if phase else None, user=user or None, after=after or None, limit=PAGE + 1
        )
        rows = [views.row_of(job, self._site.now) for job in found[:PAGE]]
        more = rows[-1].job.id if len(found) > PAGE else ""
        return self._site.render(
            request, "jobs.html", rows=rows, phases=list(Phase), phase=phase, by=user, after=after, more=more
        )

    async def job(self, request: Request, job: JobName) -> Response:
        """One job."""
        info = self._controller.find(job)
        if info.id != job:
            return RedirectResponse(f"/jobs/{info.id}", status_code=303)
        return job_page(self._site, request, job)

    async def job_facts(self, request: Request, job: JobName) -> Response:
        """How it stands."""
        row = views.row_of(self._controller.job(job), self._site.now)
        return self._site.render(request, "job_facts.html", row=row, job=row.job)

    async def job_actions(self, request: Request, job: JobName) -> Response:
        """What can be done about it."""
        return self._site.render(request, "job_actions.html", job=self._controller.job(job))

    async def job_story(self, request: Request, job: JobName) -> Response:
        """What happened to it and why."""
        return self._site.render(request, "job_story.html", story=self._controller.story(job))

    async def job_chart(self, job: JobName) -> Response:
        """What its charts draw."""
        controller = self._controller
        info, series = controller.job(job), controller.series(job)
        body = msgspec.json.encode(chart_data(info, series, self._site.now))
        return Response(body, media_type="application/json")

    # --- the rest ---

    async def cluster(self, request: Request) -> Response:
        """Racks, nodes, devices, and who is on them."""
        return cluster_page(self._site, request)

    async def cluster_part(self, request: Request) -> Response:
        """The same without what does not change."""
        return self._site.render(request, "cluster_parts.html", racks=views.racks(self._controller.nodes()))

    async def what_if(self, request: Request) -> Response:
        """What another policy would do, or one more job."""
        policy = self._controller.overview().policy
        return self._site.render(
            request, "what_if.html", policies=sorted(POLICIES), policy=policy, chosen="", text="", result=None
        )

    async def events(
        self,
        request: Request,
        job: Name = "",
        kind: Name = "",
        before: Annotated[int | None, Query(ge=1, le=1 << 53)] = None,
    ) -> Response:
        """The log."""
        page = look.newest_events(self._controller, job=job or None, kind=kind or None, before=before)
        return self._site.render(request, "events.html", page=page, job=job, kind=kind, kinds=KINDS, before=before)

    async def events_part(self, request: Request, job: Name = "", kind: Name = "") -> Response:
        """Its newest lines."""
        page = look.newest_events(self._controller, job=job or None, kind=kind or None, before=None)
        return self._site.render(request, "events_parts.html", page=page, job=job, kind=kind)
