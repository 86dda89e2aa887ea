"""Pages that are shown both when somebody opens them and when a form on them was sent."""

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response

from melodeon.control.web import views
from melodeon.control.web.site import Site


def job_page(site: Site, request: Request, job: str, **more: object) -> Response:
    """The page of one job."""
    info = site.controller.job(job)
    file = yaml.safe_dump(msgspec.to_builtins(info.spec), sort_keys=False, allow_unicode=True).splitlines()
    return site.render(
        request,
        "job.html",
        row=views.row_of(info, site.now),
        job=info,
        story=site.controller.story(job),
        file=file,
        stream_job=info.id,
        **more,
    )


def cluster_page(site: Site, request: Request, **more: object) -> Response:
    """The page of the cluster."""
    return site.render(request, "cluster.html", racks=views.racks(site.controller.nodes()), **more)
