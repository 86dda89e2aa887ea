"""`melodeon policy`: by which policy the cluster decides; an operator changes it while jobs run."""

from typing import Annotated

import typer

from melodeon.cli.cluster import connect, say
from melodeon.cli.job import Output, wants_json
from melodeon.cli.output import print_json


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies, for the shell."""
    from melodeon.sched.registry import POLICIES

    return sorted(name for name in POLICIES if name.startswith(incomplete))


def policy(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Decide by this one from now on.", autocompletion=complete_policy),
    ] = None,
    output: Output = "table",
) -> None:
    """Show the cluster's policy, or set it."""
    as_json = wants_json(output)
    with connect() as cluster:
        before = cluster.policy()
        now = before if name is None else cluster.set_policy(name)
        others = [known for known in cluster.policies() if known != now]
    if as_json:
        print_json({"policy": now, "before": before, "policies": sorted([now, *others])})
        return
    say("policy", now if now == before else f"{now}, after {before}; running jobs are judged by it from now on")
    if name is None:
        say("others", ", ".join(others))
        say("next", "melodeon whatif --policy NAME")
    else:
        say("next", "melodeon ps")
