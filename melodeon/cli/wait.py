"""`melodeon wait`: until a job of the cluster is over; the exit code says how it ended.

What happens meanwhile is told on stderr. A service that is started again on the way is waited for.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import RESTART_S, ClusterJob, connect, print_value, say, say_next
from melodeon.cli.job import Output, from_here, wants_json
from melodeon.cli.jobfile import flags_of
from melodeon.cli.submit import next_try
from melodeon.core.errors import Cancelled, MelodeonError, Rejected, Unreachable, UsageError
from melodeon.core.moments import day_and_clock
from melodeon.core.text import counted, plain
from melodeon.viz.words import duration

if TYPE_CHECKING:
    from melodeon.client import Cluster
    from melodeon.core.service import JobInfo

CODES = {"done": 0, "failed": MelodeonError.exit_code, "rejected": Rejected.exit_code, "cancelled": Cancelled.exit_code}
"""By how a job ends: what a process that waited for it returns."""
TOLD_S = 2.0
"""How often news are looked for that nobody has to act on."""
UNTOLD = ("launched", "moved", "sized")
"""Kinds of events that a person who waits need not read."""


def wait(
    job: ClusterJob,
    timeout: Annotated[str | None, typer.Option(metavar="10m", help="Wait no longer; the exit code is 5 then.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing of what happens meanwhile.")] = False,
    output: Output = "table",
) -> None:
    """Wait until a job of the cluster is over.

    Ends with 0 if the job is done, 1 if it failed, 3 if it was rejected, 7 if it was cancelled.
    """
    as_json = wants_json(output)
    raise typer.Exit(wait_for(job, timeout, as_json=as_json, quiet=quiet or as_json))


def wait_for(
    name: str, timeout: str | None, *, as_json: bool, quiet: bool, retry: "Callable[[JobInfo], str] | None" = None
) -> int:
    """Wait, tell how it ended, and return the exit code; `retry` makes the command that would be accepted."""
    timeout_s = None if timeout is None else _seconds(timeout)
    with connect(RESTART_S) as cluster:
        info = cluster.job(name)
        try:
            info = _followed(cluster, info, timeout_s, quiet=quiet)
        except KeyboardInterrupt:
            raise Cancelled(f"stopped waiting; job {info.id} goes on: see `melodeon show {info.id}`") from None
    if info.phase.value not in CODES:
        raise Unreachable(
            f"job {info.id} is {info.phase.value} after {timeout}, not over: wait longer, or see "
            f"`melodeon show {info.id}`"
        )
    if as_json:
        print_value(info)
    else:
        tell_end(info, retry or submit_again)
    return CODES[info.phase.value]


def _followed(cluster: "Cluster", info: "JobInfo", timeout_s: float | None, *, quiet: bool) -> "JobInfo":
    """The job once it is over, or time is up."""
    if quiet:
        return cluster.wait(info.id, timeout_s)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    seen = newest(cluster, info.id)
    while True:
        left_s = TOLD_S if until is None else min(TOLD_S, max(0.0, until - time.monotonic()))
        info = cluster.wait(info.id, left_s)
        for event in cluster.events(seen, job=info.id):
            seen = event.seq
            if event.kind not in UNTOLD:
                print(f"{day_and_clock(event.at, time.time())}  {plain(event.text)}", file=sys.stderr, flush=True)
        if info.phase.value in CODES or (until is not None and time.monotonic() >= until):
            return info


def newest(cluster: "Cluster", job: str | None) -> int:
    """The number of the newest event."""
    after = 0
    while page := cluster.events(after, job=job, limit=1000):
        after = page[-1].seq
    return after


def submit_again(info: "JobInfo") -> str:
    """The command that submits a rejected job so that it would be accepted."""
    return next_try("submit", None, flags_of(info.spec), info)


def tell_end(info: "JobInfo", retry: "Callable[[JobInfo], str]") -> None:
    """How a job ended, and what to look at."""
    took = duration((info.finished_at or time.time()) - info.submitted_at)
    steps = f", {counted(info.step, 'step')}" if info.step else ""
    why = f": {info.why}" if info.why and info.phase.value != "done" else ""
    say(info.phase.value, f"{info.id} after {took}{steps}{why}")
    tell_result(info)
    if info.phase.value == "rejected":
        say_next(retry(info))
    else:
        say("next", f"melodeon {'logs' if info.phase.value == 'failed' else 'show'} {info.id}")


def tell_result(info: "JobInfo") -> None:
    """What a job warned of and brought, as far as there is any."""
    for text in info.warnings:
        say("warning", text)
    if info.digest:
        say("digest", info.digest)
    if info.run_dir:
        say("run", from_here(info.run_dir))


def _seconds(text: str) -> float:
    from melodeon.core.spec import moment

    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else moment(text, 0.0)
    except UsageError:
        raise UsageError(f"--timeout {text} is no length of time: write 90s, 10m, 2h") from None
