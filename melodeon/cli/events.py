"""`melodeon events`: the cluster's log, decisions with their reasons; `-f` goes on."""

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import RESTART_S, complete_cluster, connect, print_value
from melodeon.cli.follow import last_of
from melodeon.cli.job import Output, wants_json
from melodeon.cli.output import mute, print_titled
from melodeon.core.errors import UsageError
from melodeon.core.moments import day_and_clock
from melodeon.core.text import plain

if TYPE_CHECKING:
    from melodeon.client import Cluster
    from melodeon.core.service import EventInfo

PAGE = 1000
NEWEST = 20
"""How many are printed where nobody says which."""


def events(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Only of this job of the cluster.", autocompletion=complete_cluster),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    tail: Annotated[int | None, typer.Option(help="So many of the newest; 20 without --after.")] = None,
    after: Annotated[int | None, typer.Option(metavar="SEQ", help="Only those after this number.")] = None,
    output: Output = "table",
) -> None:
    """Print the cluster's log: what happened, and why."""
    as_json = wants_json(output)
    if tail is not None and tail < 0:
        raise UsageError(f"--tail {tail} is no number of events: choose 0 or more")
    try:
        with connect(RESTART_S if follow else None) as cluster:
            name = None if job is None else cluster.job(job).id
            seen, found = _newest(cluster, name, after or 0, NEWEST if tail is None and after is None else tail)
            for event in found:
                _tell(event, as_json=as_json)
            if follow:
                for event in cluster.follow_events(seen, job=name):
                    _tell(event, as_json=as_json)
    except KeyboardInterrupt:
        pass  # how a person ends following
    except BrokenPipeError:
        mute(sys.stdout)


def _newest(cluster: "Cluster", job: str | None, after: int, keep: int | None) -> "tuple[int, deque[EventInfo]]":
    """The last events after a number, and the number to go on from."""
    found: deque[EventInfo] = last_of((), keep)
    while page := cluster.events(after, job=job, limit=PAGE):
        found.extend(page)
        after = page[-1].seq
        if len(page) < PAGE:
            break
    return after, found


def _tell(event: "EventInfo", *, as_json: bool) -> None:
    if as_json:
        print_value(event)
        return
    name = f"{plain(event.job)}  " if event.job else ""
    print_titled(day_and_clock(event.at, time.time()), f"{name}{plain(event.text)}", indent=10)
    sys.stdout.flush()
