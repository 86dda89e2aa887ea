"""`melodeon nodes`: the cluster's nodes and who holds their devices; and for operators, which of them to use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import connect, print_value, say
from melodeon.cli.job import Output, wants_json
from melodeon.cli.output import columns, print_json
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.text import plain
from melodeon.viz.words import counted

if TYPE_CHECKING:
    from melodeon.core.service import NodeInfo

COLUMNS = ("node", "type", "rack", "state", "used", "jobs (devices)")
JOBS, NUMBERS = 5, (4,)


def nodes(
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="The node to speak of.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Leave it empty: its jobs move away.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Use it again.")] = False,
    down: Annotated[bool, typer.Option("--down", help="It is gone, and what ran there.")] = False,
    output: Output = "table",
) -> None:
    """List the cluster's nodes; an operator takes them out and back."""
    as_json = wants_json(output)
    wishes = [name for name, wished in (("--drain", drain), ("--use", use), ("--down", down)) if wished]
    if len(wishes) > 1:
        raise UsageError(f"{' and '.join(wishes)} contradict each other: give one of them")
    if wishes:
        if node is None:
            raise UsageError(f"{wishes[0]} needs a node: name one of `melodeon nodes`")
        with connect() as cluster:
            found = cluster.set_node(node, up=False if down else True if use else None, drained=None if down else drain)
        if as_json:
            print_value(found)
        else:
            say("done", f"node {found.id} is {_state(found)}")
            say("next", "melodeon nodes")
        return
    with connect() as cluster:
        listed = cluster.nodes()
    if node is not None:
        listed = tuple(one for one in listed if one.id == node)
        if not listed:
            raise NotFound(f"node {node!r} is not in the cluster: see `melodeon nodes`")
    if as_json:
        import msgspec

        print_json({"nodes": msgspec.to_builtins(listed)})
        return
    print("\n".join(columns([COLUMNS, *map(_cells, listed)], gives_way=JOBS, numbers=NUMBERS)))
    used, have = sum(map(_used, listed)), sum(one.num_devices for one in listed)
    print(f"\n{used} of {counted(have, 'device')} in use")
    holder = next((job for one in listed for job in one.jobs if job is not None), None)
    away = next((one.id for one in listed if not one.up or one.drained), None)
    if holder is not None:
        print(f"next: melodeon show {plain(holder)}")
    else:
        print("next: melodeon submit FILE" if away is None else f"next: melodeon nodes {plain(away)} --use")


def _used(node: "NodeInfo") -> int:
    return sum(job is not None for job in node.jobs)


def _state(node: "NodeInfo") -> str:
    return "down" if not node.up else "drained" if node.drained else "up"


def _cells(node: "NodeInfo") -> Sequence[str]:
    holders: dict[str, list[str]] = {}
    for index, job in enumerate(node.jobs):
        if job is not None:
            holders.setdefault(job, []).append(str(index))
    jobs = "; ".join(f"{job} ({','.join(indices)})" for job, indices in holders.items())
    used = f"{_used(node)}/{node.num_devices}"
    return (plain(node.id), plain(node.type), plain(node.rack) or "-", _state(node), used, plain(jobs) or "-")
