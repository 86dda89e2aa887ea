"""The `melodeon` command: a word of `commands` and its options; errors become one sentence and an exit code.

Plain help, and completion only where a shell asks, keep `melodeon --help` fast; torch is never imported from here.
"""

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import melodeon
from melodeon.cli.commands import AllCommands
from melodeon.cli.output import fail
from melodeon.core.errors import MelodeonError

COMPLETE = "_MELODEON_COMPLETE"
"""Set by a shell that asks for completions; `source_bash`, `source_zsh` and `source_fish` print what it must run."""

app = typer.Typer(
    name="melodeon",
    cls=AllCommands,
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


def _have_streams() -> None:
    """A stream that was closed before we were started (`>&-`) takes what is said, and says it to nobody.

    In this order each gets the number that is its own, before another file does. Where stdout is a terminal that cannot
    show a letter, another stands in its place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open to the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Run the command line; every MelodeonError ends as a sentence, never as a traceback."""
    _have_streams()
    try:
        app()
    except MelodeonError as error:
        fail(error)
