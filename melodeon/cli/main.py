"""The `melodeon` command: commands are functions of this folder, errors become one sentence and an exit code.

Plain help, and completion only where a shell asks, keep `melodeon --help` fast; torch is never imported from here.
"""

import importlib
import os
from typing import Annotated

import typer

import melodeon
from melodeon.cli.help import Command, Commands
from melodeon.cli.output import fail
from melodeon.core.errors import MelodeonError

GROUPS = {
    "Train and prove": ("run", "verify", "diff", "scan", "export", "doctor"),
    "The cluster": ("serve", "submit", "show", "wait", "edit", "cancel", "nodes", "events", "policy", "whatif"),
    "Running jobs": ("ps", "top", "logs", "scale", "migrate", "profile", "checkpoint", "stop", "trace"),
    "Scheduling": ("sim", "plot", "explain"),
}
"""In the order that help lists them; each is the function of that name in the module of that name, or in `MODULES`'."""

COMMANDS = tuple(name for names in GROUPS.values() for name in names)

MODULES = dict.fromkeys(("scale", "migrate", "profile", "checkpoint", "stop"), "jobs")
"""Commands whose module has another name."""

PASS_ON = {"run", "scan"}
"""What follows the script is the script's, options too; `verify` has its own there, and the script's after `--`."""

COMPLETE = "_MELODEON_COMPLETE"
"""Set by a shell that asks for completions; `source_bash`, `source_zsh` and `source_fish` print what it must run."""

Commands.groups = GROUPS
app = typer.Typer(
    name="melodeon",
    cls=Commands,
    no_args_is_help=True,
    add_completion=COMPLETE in os.environ,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"melodeon {melodeon.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train the same model, to the last bit, on any number of workers."""


for _name in COMMANDS:
    _function = getattr(importlib.import_module(f"melodeon.cli.{MODULES.get(_name, _name)}"), _name)
    app.command(_name, cls=Command, context_settings={"allow_interspersed_args": _name not in PASS_ON})(_function)


def main() -> None:
    """Run the command line; every MelodeonError ends as a sentence, never as a traceback."""
    try:
        app()
    except MelodeonError as error:
        fail(error)
