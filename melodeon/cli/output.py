"""What every command prints in the same way: errors, JSON, and text and tables that fit 80 columns."""

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from melodeon.core.errors import MelodeonError, UsageError
from melodeon.core.text import harmless

WIDTH = 80
FORMATS = ("table", "json")


def fail(error: MelodeonError) -> NoReturn:
    """Say what is wrong on stderr, in one sentence, and end with the error's exit code."""
    text = "\n".join(harmless(line) for line in str(error).split("\n"))  # it may quote a path, a name, a job's words
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def require_format(output: str, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a way to print that there is not."""
    if output not in formats:
        raise UsageError(f"-o {output} is not one of {', '.join(formats)}: leave it out for a table")


def write_file(path: Path, content: bytes) -> None:
    """Write a file that a person named by `-o`; it is there whole or not at all.

    A pipe or a device, such as /dev/null, is written to instead: in its place a file would be in everybody's way.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        raise MelodeonError(f"{path} cannot be written ({error.strerror}): choose another file by -o FILE") from error


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def mute(stream: TextIO) -> None:
    """Its reader left (`| head`): what is still in its buffer, and what comes, goes nowhere.

    Python would fail once more when it flushes the stream at the end, and end with an exit code of its own.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def said_to(stream: TextIO) -> Iterator[None]:
    """What is said in here ends nothing that goes on: a reader may have left, a terminal's window may be closed."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise  # a file's, not the stream's
        mute(stream)


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(value), flush=True)


def print_wrapped(text: str) -> None:
    """A sentence on stdout, wrapped to the width of a terminal; words that people copy stay whole."""
    print(textwrap.fill(text, WIDTH - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def shortened(text: str, room: int = WIDTH) -> str:
    """A text that fits; its end goes where it would not."""
    return text if len(text) <= room else text[: room - 1] + "…"


def print_titled(title: str, *lines: str, indent: int) -> None:
    """`title` on the left and lines in a column beside it, wrapped likewise."""
    for line in lines:
        room = WIDTH - indent - 1
        parts = textwrap.wrap(line, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for part in parts or [""]:
            print(f"{title:<{indent}}{part}")
            title = ""


def columns(rows: Sequence[Sequence[str]], *, gives_way: int, numbers: Container[int]) -> list[str]:
    """Lines of text in columns, those of `numbers` to the right; one is cut where lines would be too long."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    widths[gives_way] = max(len(rows[0][gives_way]), widths[gives_way] - max(0, over))
    made = []
    for row in rows:
        cells = [shortened(text, wide) for text, wide in zip(row, widths, strict=True)]
        placed = zip(cells, widths, range(len(cells)), strict=True)
        made.append(
            "  ".join(cell.rjust(wide) if at in numbers else cell.ljust(wide) for cell, wide, at in placed).rstrip()
        )
    return made


def fitted(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Container[str],
    leave_out: Sequence[str],
    gives_way: str | None = None,
) -> list[str]:
    """Such lines, without columns that do not fit: those of `leave_out` go in this order, once `gives_way` is short."""
    kept = [list(column) for column in zip(titles, *rows, strict=True)]
    for gone in leave_out:
        widths = [len(column[0]) if column[0] == gives_way else max(map(len, column)) for column in kept]
        if sum(widths) + 2 * (len(widths) - 1) > WIDTH:
            kept = [column for column in kept if column[0] != gone]
    left = [column[0] for column in kept]
    to_the_right = [at for at, title in enumerate(left) if title in numbers]
    cut = 0 if gives_way is None else left.index(gives_way)
    return columns(list(zip(*kept, strict=True)), gives_way=cut, numbers=to_the_right)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout, never wider than 80 columns; long cells wrap, and a long word is folded, never cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    heads = [Column(name, overflow="fold") for name in columns]
    table = Table(*heads, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table, width=min(WIDTH, console.width), markup=False)
