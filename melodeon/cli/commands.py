"""Every command by name: its group, its line in the help, and the function behind it.

A function's module is imported when its command is called or asked for its own help, so that no command waits for
what another one needs, and `melodeon --help` for none of them.
"""

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from melodeon.cli.help import Command, Commands

if TYPE_CHECKING:
    from typer._click import Command as BaseCommand

GROUPS = {
    "Train and prove": {
        "run": "Run SCRIPT on local workers; what follows it goes to the script.",
        "verify": "Prove that SCRIPT gives the same bits on any number of workers.",
        "diff": "Find the first operator whose inputs agree and outputs differ.",
        "scan": "List the operators of SCRIPT whose bits depend on the device.",
        "export": "Write the model of a checkpoint as a plain state_dict.",
        "doctor": "Say what this machine can promise, and check it.",
    },
    "The cluster": {
        "serve": "Run a cluster on this machine: admits, sizes and trains jobs.",
        "submit": "Submit a job to the cluster: by a file, flags, or both.",
        "show": "Show a job of the cluster, and tell its story.",
        "wait": "Wait until a job of the cluster is over.",
        "edit": "Change a submitted job; its deadline is judged again.",
        "cancel": "End a job of the cluster for good, whatever it is doing.",
        "nodes": "List the cluster's nodes; an operator takes them out and back.",
        "events": "Print the cluster's log: what happened, and why.",
        "policy": "Show the cluster's policy, or set it.",
        "whatif": "Play the cluster forward, with another policy or one more job.",
    },
    "Running jobs": {
        "agent": "Let this machine take part in a job that another one runs.",
        "ps": "List the cluster's jobs, and those that run on this machine.",
        "top": "Watch a running job: q leaves.",
        "logs": "Print what a job's workers have printed.",
        "scale": "Give a running job more or fewer workers.",
        "migrate": "Move a worker to a fresh process, or to another agent's node.",
        "profile": "Measure a job's steps per second at several sizes.",
        "checkpoint": "Have a running job write a checkpoint at its next step.",
        "stop": "End a running job at its next step.",
        "trace": "Draw a run's steps, pauses, views and faults for Perfetto.",
    },
    "Scheduling": {
        "sim": "Simulate traces of jobs under scheduling policies.",
        "plot": "Draw simulations that `melodeon sim --save` kept.",
        "explain": "Tell in sentences what became of a simulated job.",
    },
}
"""In the order that help lists them; each is the function of that name in the module of that name, or in `MODULES`'."""

COMMANDS = tuple(name for group in GROUPS.values() for name in group)

MODULES = dict.fromkeys(("scale", "migrate", "profile", "checkpoint", "stop"), "jobs")
"""Commands whose module has another name."""

PASS_ON = {"run", "scan"}
"""What follows the script is the script's, options too; `verify` has its own there, and the script's after `--`."""


class Loaded(MutableMapping[str, "BaseCommand"]):
    """Commands by name, each made when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, BaseCommand | None] = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> "BaseCommand":
        """The command, whose module is imported by now."""
        command = self._made[name]
        if command is None:
            command = self._made[name] = _made(name)
        return command

    def __setitem__(self, name: str, command: "BaseCommand") -> None:
        """Add one that is made already."""
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        """Forget one."""
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the help."""
        return iter(self._made)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._made)


class AllCommands(Commands):
    """The commands of `GROUPS`."""

    groups = GROUPS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Loaded()


def _made(name: str) -> "BaseCommand":
    function = getattr(importlib.import_module(f"melodeon.cli.{MODULES.get(name, name)}"), name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, cls=Command, context_settings={"allow_interspersed_args": name not in PASS_ON})(function)
    return get_command(alone)
