"""What every command prints in the same way: errors, JSON, and tables that fit 80 columns."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from melodeon.core.errors import MelodeonError

WIDTH = 80


def fail(error: MelodeonError) -> NoReturn:
    """Say what is wrong on stderr, in one sentence, and end with the error's exit code."""
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(value), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout, never wider than 80 columns; long cells wrap."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table, width=min(WIDTH, console.width), markup=False)
