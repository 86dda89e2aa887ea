"""The cluster that commands speak with: found by the address that `melodeon serve` leaves, imported on first use.

Where a name may be a job of the cluster or a run of `melodeon run`, the cluster is asked first, if one is there.
"""

import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.output import print_json, print_titled
from melodeon.core.errors import MelodeonError
from melodeon.core.text import plain

if TYPE_CHECKING:
    from melodeon.client import Cluster
    from melodeon.core.service import JobInfo

URL, STATE = "MELODEON_URL", "MELODEON_STATE"
"""Name a service, or the state folder of one; the client reads them too."""
INDENT = 11
PATIENCE_S = 5.0
"""How long a service that does not answer is asked again."""
RESTART_S = 60.0
"""How long commands that wait will wait for a service that is started again."""
SHELL_S = 0.5
"""A shell that asks for words does not wait."""


def connect(patience_s: float | None = None) -> "Cluster":
    """The cluster; the first request says so if there is none."""
    from melodeon.client import Cluster

    return Cluster(patience_s=PATIENCE_S if patience_s is None else patience_s)


def there(patience_s: float | None = None) -> "Cluster | None":
    """The cluster, where one is named or runs; looks without loading the client."""
    from melodeon.control import address

    if not is_named() and address.find(None) is None:
        return None
    return connect(patience_s)


def is_named() -> bool:
    """Whether a service is named, and not only looked for."""
    return bool(os.environ.get(URL) or os.environ.get(STATE))


def complete_cluster(incomplete: str) -> list[str]:
    """The ids of the cluster's jobs, for the shell; one that cannot be asked completes nothing."""
    with contextlib.suppress(OSError, MelodeonError):  # a shell that asks for words must not get a traceback
        if (cluster := there(SHELL_S)) is not None:
            with cluster:
                return [job.id for job in cluster.jobs() if job.id.startswith(incomplete)]
    return []


ClusterJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job of the cluster: its id, the beginning of it, or `last`.",
        autocompletion=complete_cluster,
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Leave the cluster out: only runs of `melodeon run`.")]


def run_id(job: "JobInfo") -> str:
    """What the job's newest start is called among the running jobs of its machine."""
    return f"{job.id}.{job.incarnation}"


def print_value(value: object, **more: object) -> None:
    """A value of the service as one JSON object."""
    import msgspec

    made = msgspec.to_builtins(value, str_keys=True)
    print_json({**(made if isinstance(made, dict) else {"values": made}), **more})


def say_next(command: str) -> None:
    """The command to go on with, in one line however long, so that it can be copied."""
    print(f"{'next':<{INDENT}}{plain(command)}")


def say(title: str, *lines: str) -> None:
    """A title and what the service said, which may hold what people wrote."""
    print_titled(title, *map(plain, lines), indent=INDENT)
