"""`melodeon edit`: change a submitted job; it is judged again, and stays as it was where that is refused."""

from typing import Annotated

import typer

from melodeon.cli.cluster import ClusterJob, connect, print_value, say
from melodeon.cli.job import Output, wants_json
from melodeon.cli.jobfile import NONE
from melodeon.cli.options import Epochs, OnMiss, Priority, Range, Steps
from melodeon.cli.submit import next_try, tell
from melodeon.core.errors import Rejected, UsageError


def edit(
    job: ClusterJob,
    deadline: Annotated[str | None, typer.Option(metavar="6h|DATE|none", help="From now; none: best effort.")] = None,
    on_miss: OnMiss = None,
    priority: Priority = None,
    workers: Range = None,
    steps: Steps = None,
    epochs: Epochs = None,
    until: Annotated[
        str | None, typer.Option(metavar="AIM|none", help="Stop once a logged mean is good enough.")
    ] = None,
    output: Output = "table",
) -> None:
    """Change a submitted job; its deadline is judged again.

    Refused, it stays as it was, and the exit code is 3.
    """
    as_json = wants_json(output)
    flags: dict[str, object] = {
        "deadline": deadline,
        "on_miss": on_miss,
        "priority": priority,
        "workers": workers,
        "steps": steps,
        "epochs": epochs,
        "until": until,
    }
    changes = {name: None if value == NONE else value for name, value in flags.items() if value is not None}
    if not changes:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in flags)
        raise UsageError(f"nothing is changed: give one of {names}")
    with connect() as cluster:
        answer = cluster.edit(cluster.job(job).id, changes)
    again = next_try("edit", answer.job.id, flags, answer.job) if answer.admitted is False else ""
    if as_json:
        print_value(answer, next=again or answer.next)
    elif answer.admitted is False:
        tell(answer, again)
    else:
        say("changed", answer.text)
        say("next", answer.next)
    if answer.admitted is False:
        raise typer.Exit(Rejected.exit_code)
