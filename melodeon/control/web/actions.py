"""What can be done from the pages: forms that are sent. The door has seen that they come from our own pages.

A form that a script sends is answered with a sentence for the page; one that the browser sends itself, with the page.
"""

import asyncio
from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from melodeon.control.api.errors import Unauthorized
from melodeon.control.api.requests import Service, job_file, own
from melodeon.control.web import views
from melodeon.control.web.shown import cluster_page, job_page
from melodeon.control.web.site import Said, Site, form, is_fragment, login_page, templates
from melodeon.core.errors import UsageError
from melodeon.core.jobtext import read_fields
from melodeon.core.spec import Spec
from melodeon.core.text import counted
from melodeon.sched.registry import POLICIES

LONGEST_FILE = 64 << 10
MOST_DIGITS = 9
WRONG_TOKEN = "this token is not known here: take the one in the state folder's file `token`"  # noqa: S105 - a sentence

JobName = Annotated[str, Path(max_length=200)]


class Actions:
    """What can be done."""

    def __init__(self, site: Site) -> None:
        self._site, self._controller = site, site.controller

    # --- the door ---

    async def open_link(self, token: Annotated[str, Query(max_length=512)] = "") -> Response:
        """The link that the service prints. A page of ours follows, not a redirect: a browser that came from elsewhere
        sends a strict cookie only to where our own page leads, and the token leaves the browser's history.
        """
        if not token:
            return login_page()
        headers = {"Referrer-Policy": "no-referrer"}
        response = HTMLResponse(templates().get_template("entered.html").render(), headers=headers)
        try:
            self._site.auth.sign_in(response, token)
        except Unauthorized:
            return login_page(WRONG_TOKEN, status=401)
        return response

    async def sign_in(self, request: Request) -> Response:
        """A token by hand."""
        token = (await form(request)).get("token", "")
        response = RedirectResponse("/", status_code=303)
        try:
            self._site.auth.sign_in(response, token)
        except Unauthorized:
            return login_page(WRONG_TOKEN, status=401)
        return response

    async def sign_out(self) -> Response:
        """Have the browser forget."""
        response = RedirectResponse("/login", status_code=303)
        self._site.auth.sign_out(response)
        return response

    # --- jobs ---

    async def cancel(self, request: Request, job: JobName) -> Response:
        """End a job for good."""
        user = self._site.user(request)
        own(service(request), job, user)
        info = await self._controller.cancel(job, user=user.name)
        return self._said(request, job, Said(f"{info.id} is {info.phase.value}"))

    async def scale(self, request: Request, job: JobName) -> Response:
        """Fix a job's number of workers, or give it back to the policy."""
        user = self._site.operator(request)
        text = (await form(request)).get("workers", "")
        if text and not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS and int(text)):
            raise UsageError(f"workers: {text[:100]!r} must be a whole number from 1 on; leave it empty for the policy")
        workers = int(text) if text else None
        info = await self._controller.scale(job, workers, user=user.name)
        what = "back with the policy" if workers is None else f"fixed at {counted(workers, 'worker')}"
        return self._said(request, job, Said(f"{info.id} is {what}"))

    async def edit(self, request: Request, job: JobName) -> Response:
        """Another deadline; it is judged again."""
        user = self._site.user(request)
        own(service(request), job, user)
        fields = await form(request)
        changes: dict[str, object] = {"deadline": fields.get("deadline") or None}
        if fields.get("on_miss"):
            changes["on_miss"] = fields["on_miss"]
        made = await self._controller.edit(job, changes, user=user.name)
        tone = "bad" if made.admitted is False else "good"
        return self._said(request, job, Said(made.text, tone, made.next if tone == "bad" else ""))

    def _said(self, request: Request, job: str, said: Said) -> Response:
        if is_fragment(request):
            return self._site.say(said)
        return job_page(self._site, request, job, said=said)

    # --- the cluster ---

    async def set_node(self, request: Request, node: Annotated[str, Path(max_length=200)]) -> Response:
        """Leave a node empty, or use it again."""
        user = self._site.operator(request)
        drained = (await form(request)).get("drained")
        if drained not in ("yes", "no"):
            raise UsageError(f"drained: {(drained or '')[:100]!r} must be yes or no")
        info = await self._controller.set_node(node, up=None, drained=drained == "yes", user=user.name)
        said = Said(f"{info.id} is {'drained: its jobs move away' if info.drained else 'in use again'}")
        if is_fragment(request):
            return self._site.say(said)
        return cluster_page(self._site, request, said=said)

    async def set_policy(self, request: Request) -> Response:
        """Decide by another policy from now on."""
        user = self._site.operator(request)
        name = await self._controller.set_policy((await form(request)).get("policy", ""), user=user.name)
        if is_fragment(request):
            return self._site.say(Said(f"{name} decides from now on"))
        return RedirectResponse("/what-if", status_code=303)

    async def what_if(self, request: Request) -> Response:
        """Play the cluster forward as it is and as it would be, and compare."""
        user, here, fields = self._site.user(request), service(request), await form(request)
        policy, text = fields.get("policy") or None, fields.get("job", "")
        spec = await asyncio.to_thread(_read_job, here, text) if text else None
        async with here.playing:
            as_is = await self._controller.whatif(None, None, user=user.name)
            other = await self._controller.whatif(policy, spec, user=user.name)
        result = {
            "rows": views.compared(as_is, other),
            "figures": views.figures(as_is, other),
            "policy": other.policy if other.policy != as_is.policy else "",
        }
        if is_fragment(request):
            return self._site.render(request, "what_if_result.html", result=result)
        return self._site.render(
            request,
            "what_if.html",
            policies=sorted(POLICIES),
            policy=as_is.policy,
            chosen=policy or "",
            text=text,
            result=result,
        )


def service(request: Request) -> Service:
    """What the API's routes stand on too."""
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


def _read_job(here: Service, text: str) -> Spec:
    """A job's file as somebody pasted it."""
    if len(text) > LONGEST_FILE:
        raise UsageError(f"the job's file has {len(text):,} letters: it may have {LONGEST_FILE:,}")
    return job_file(here, read_fields(text, "the job's file"))
