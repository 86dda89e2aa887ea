"""`melodeon whatif`: the cluster played forward from now, under another policy, or with one more job."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import connect, print_value, say, say_next
from melodeon.cli.job import Output, wants_json
from melodeon.cli.jobfile import command_line, read_job
from melodeon.cli.output import fitted
from melodeon.cli.policy import complete_policy
from melodeon.cli.times import away
from melodeon.core.errors import UsageError
from melodeon.core.text import counted, plain
from melodeon.viz.words import duration

if TYPE_CHECKING:
    from melodeon.core.service import WhatIf, WhatIfJob

COLUMNS = ("job", "finish", "deadline", "in time", "why")
LEAVE_OUT = ("in time", "deadline")
"""Columns that are left out, in this order, where lines are too long even with a short why."""


def whatif(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="One more job, by its file.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Under this one.", autocompletion=complete_policy)
    ] = None,
    deadline: Annotated[str | None, typer.Option(metavar="6h|DATE|none", help="For the one more job.")] = None,
    output: Output = "table",
) -> None:
    """Play the cluster forward, with another policy or one more job.

    Nothing is changed: the simulator goes on from how the cluster stands now.
    """
    as_json = wants_json(output)
    if file is None and deadline is not None:
        raise UsageError(f"--deadline {deadline} is for one more job, and none is named: give its FILE too")
    job = None if file is None else read_job(file, {"deadline": deadline})
    with connect() as cluster:
        found = cluster.whatif(policy=policy, job=job)
    if as_json:
        print_value(found)
        return
    _tell(found, time.time())
    if file is not None:
        # Who would be turned away is told by a dry run what would be accepted.
        dry = "" if all(job.admitted for job in found.jobs) else " --dry-run"
        say_next(command_line("submit", file, {"deadline": deadline}) + dry)
    elif found.jobs:
        say_next("melodeon whatif --policy NAME" if policy is None else f"melodeon policy {found.policy}")


def _tell(found: "WhatIf", now: float) -> None:
    if not found.jobs:
        say("whatif", "there is no job to play forward: submit one, or name a job's file")
        return
    rows = [_cells(job, now) for job in found.jobs]
    print("\n".join(fitted(COLUMNS, rows, numbers=(), leave_out=LEAVE_OUT, gives_way="why")))
    print()
    say("policy", found.policy)
    for job in found.jobs:
        if not job.admitted:
            say("rejected", f"{job.id}: {job.why}")
    say("deadlines", f"{found.deadlines_met} of {found.deadlines} met, {found.rejected} rejected")
    mean = "" if found.mean_jct_s is None else f"; {duration(found.mean_jct_s)} a job on average"
    if found.makespan_s is None:
        stuck = sum(job.admitted and job.finish_at is None for job in found.jobs)
        say("all done", f"never: {counted(stuck, 'job')} would get no devices; see `melodeon nodes`")
    elif any(job.admitted for job in found.jobs):
        say("all done", f"in {duration(found.makespan_s)}{mean}")


def _cells(job: "WhatIfJob", now: float) -> Sequence[str]:
    finish = "rejected" if not job.admitted else "never" if job.finish_at is None else away(job.finish_at, now)
    in_time = "-" if job.in_time is None else "yes" if job.in_time else "no"
    return plain(job.id), finish, away(job.deadline_at, now), in_time, plain(job.why)
