"""`melodeon serve`: run a cluster on this machine until it is told to stop; jobs go on without it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import say
from melodeon.cli.output import print_json
from melodeon.cli.policy import complete_policy
from melodeon.viz.words import counted

if TYPE_CHECKING:
    from melodeon.control.service import Ready

STATE = ".melodeon/cluster"


def serve(
    state: Annotated[str, typer.Option(metavar="DIR", help="Where all that it knows is kept.")] = STATE,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8470,
    devices: Annotated[int | None, typer.Option(help="So many CPU slots; the cores or GPUs by default.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="2x4:cpu", help="Nodes x devices : type.")] = None,
    topology: Annotated[str | None, typer.Option(metavar="FILE", help="Nodes, types and racks in YAML.")] = None,
    policy: Annotated[str, typer.Option(help="Who gets how much.", autocompletion=complete_policy)] = "elasticflow",
    margin: Annotated[float, typer.Option(help="Part of the time to a deadline kept back.")] = 0.1,
    quota: Annotated[int | None, typer.Option(help="Unfinished jobs that a user may have.")] = None,
    quota_day: Annotated[int | None, typer.Option(help="Jobs that a user may submit a day.")] = None,
    root: Annotated[list[str] | None, typer.Option(metavar="DIR", help="Jobs may run in it; several times.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also answers to this name.")] = None,
    run_as: Annotated[str, typer.Option(metavar="USER", help="Who jobs run as, where you may say.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Say where it is as one JSON object.")] = False,
) -> None:
    """Run a cluster on this machine: admits, sizes and trains jobs.

    Ctrl-C ends it; its jobs go on, and are found again by the next start.
    """
    from melodeon.control.service import ServeConfig, serve_forever
    from melodeon.sched.quota import Quota

    config = ServeConfig(
        state=Path(state),
        host=host,
        port=port,
        devices=devices,
        cluster=cluster,
        topology=None if topology is None else Path(topology),
        policy=policy,
        margin=margin,
        quota=Quota(active_jobs=quota, jobs_per_day=quota_day),
        roots=tuple(Path(folder) for folder in root or ()),
        hosts=tuple(allow_host or ()),
        run_as=run_as,
    )
    if config.is_exposed:
        text = f"others than this machine can reach {host}, and what they send is not encrypted: keep the token secret"
        print(f"note: {text}", file=sys.stderr)
    serve_forever(config, lambda ready: _tell(ready, policy, as_json=json))


def _tell(ready: "Ready", policy: str, *, as_json: bool) -> None:
    """Where it is, once it answers."""
    if ready.policy != policy:
        print(
            f"note: policy {ready.policy} was set while this cluster served before, and holds on: `melodeon policy "
            f"{policy}` changes it",
            file=sys.stderr,
        )
    nodes = ready.devices.cluster.nodes
    if as_json:
        found = [{"id": node.id, "type": node.device_type, "devices": node.num_devices} for node in nodes]
        print_json(
            {
                "url": ready.address.url,
                "login_url": ready.login_url,
                "state": ready.address.state,
                "pid": ready.address.pid,
                "policy": ready.policy,
                "nodes": found,
            }
        )
        return
    total = sum(node.num_devices for node in nodes)
    kinds = ", ".join(sorted({str(node.device_type) for node in nodes}))
    say("serving", f"{counted(total, 'device')} ({kinds}) on {counted(len(nodes), 'node')}, policy {ready.policy}")
    say("state", ready.address.state)
    say("pages", ready.login_url)
    say("next", "melodeon submit FILE, from another terminal; Ctrl-C ends this, jobs go on")
    sys.stdout.flush()
