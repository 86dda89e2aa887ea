"""`melodeon agent`: this machine takes part in a job that `melodeon run --listen` has started on another one."""

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.options import MOST
from melodeon.cli.output import print_json, print_titled, said_to
from melodeon.core.errors import UsageError
from melodeon.core.text import counted

if TYPE_CHECKING:
    from melodeon.backends.local import Event
    from melodeon.coord.agent_config import AgentConfig

INDENT = 8


def agent(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder, which both machines see.")],
    slots: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Workers that fit here; its GPUs or cores.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="This node's name in the job; the host's by default.")] = None,
    address: Annotated[str | None, typer.Option(help="Where other machines reach this one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")] = False,
) -> None:
    """Let this machine take part in a job that another one runs.

    Workers come here when the job is given some: `melodeon scale JOB --out 2 --on NAME`, where the job runs. Ctrl-C and
    SIGTERM give them back at the end of a step, and leave; the job trains on with the same bits.
    """
    from melodeon.backends.guest import Guest, take_part

    guest = Guest(run_dir=Path(run), name=_name(name), slots=_slots() if slots is None else slots, address=address)
    told = _Told(as_json=json)
    is_over = take_part(guest, on_start=told.started, on_event=told.event)
    told.ended(is_over)


def _name(given: str | None) -> str:
    from melodeon.backends.devices import NODE_NAME

    name = socket.gethostname().partition(".")[0] if given is None else given
    if not NODE_NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} is no name of a node: give letters, digits, dots, dashes and underscores")
    return name


def _slots() -> int:
    from melodeon.backends.devices import list_gpus

    return len(list_gpus()) or len(os.sched_getaffinity(0))


class _Told:
    """Says what happens here: lines for people, or JSON objects, one a line."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._job = self._agent = self._end = ""

    def started(self, config: "AgentConfig") -> None:
        """The agent is on its way."""
        self._job, self._agent = config.job, config.agent
        room = counted(config.slots, "slot")
        self._say("here", f"{self._agent} at {config.host} takes part in {self._job}, with {room}", slots=config.slots)
        if not self._as_json:
            self._say("next", f"melodeon scale {self._job} --out 1 --on {self._agent}, where it runs")

    def event(self, event: "Event") -> None:
        """Something happened in the job: what concerns this node is told."""
        worker = event.get("worker")
        if event.get("kind") == "worker_started" and event.get("agent") == self._agent:
            self._say("worker", f"{worker} starts in slot {event.get('slot')}", worker=worker, slot=event.get("slot"))
        elif event.get("kind") == "end":
            self._end = str(event.get("text"))

    def ended(self, is_over: bool) -> None:
        """The visit is over."""
        text = f"{self._job} has ended: {self._end}" if is_over else f"{self._job} goes on without {self._agent}"
        self._say("ended" if is_over else "left", text)

    def _say(self, kind: str, text: str, **values: object) -> None:
        with said_to(sys.stdout):
            if self._as_json:
                print_json({"kind": kind, "job": self._job, "agent": self._agent, "text": text, **values})
            else:
                print_titled(kind, text, indent=INDENT)
                sys.stdout.flush()
