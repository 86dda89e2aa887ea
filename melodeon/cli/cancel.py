"""`melodeon cancel`: end a job of the cluster for good."""

from typing import Annotated

import typer

from melodeon.cli.cluster import RESTART_S, ClusterJob, connect, print_value, say
from melodeon.cli.job import Output, wants_json
from melodeon.core.errors import UsageError


def cancel(
    job: ClusterJob,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has ended.")] = False,
    output: Output = "table",
) -> None:
    """End a job of the cluster for good, whatever it is doing."""
    as_json = wants_json(output)
    with connect(RESTART_S if wait else None) as cluster:
        before = cluster.job(job)
        if before.phase.value in ("done", "failed", "rejected"):
            raise UsageError(f"job {before.id} is {before.phase.value} already: there is nothing to cancel")
        info = cluster.cancel(before.id)
        if wait:
            info = cluster.wait(info.id)
    if as_json:
        print_value(info)
        return
    say(info.phase.value, f"{info.id}, {info.why}" if info.why else info.id)
    say("next", f"melodeon {'wait' if info.phase.value == 'cancelling' else 'show'} {info.id}")
