"""`melodeon trace`: a run as a file for ui.perfetto.dev."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from melodeon.cli.job import RUNS_ROOT, RunName, RunsRoot, find_folder, from_here, read_lines
from melodeon.core.errors import MelodeonError, NotFound, UsageError


def trace(
    job: RunName = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write, - for stdout; trace.json in the run."),
    ] = None,
    runs_root: RunsRoot = RUNS_ROOT,
) -> None:
    """Write a timeline of steps, pauses, views and faults that ui.perfetto.dev opens."""
    from melodeon.viz import perfetto

    folder = find_folder(job, runs_root)
    if not (folder / "events.jsonl").is_file():
        raise NotFound(f"run {folder.name} has no events.jsonl: only runs started by `melodeon run` have one")
    made = perfetto.trace(
        read_lines(folder / "events.jsonl"), read_lines(folder / "metrics.jsonl"), name=folder.resolve().name
    )
    found = made["traceEvents"]
    if not isinstance(found, list) or not found:
        raise UsageError(f"no event of run {folder.name} says when it was, so there is nothing to draw: run it again")
    text = json.dumps(made, allow_nan=False)
    if output == "-":
        print(text)
        return
    path = Path(output) if output else folder / "trace.json"
    _write(path, text + "\n")
    print(f"wrote {from_here(path)}: {_summary(found)}", file=sys.stderr)
    print("next: open it at https://ui.perfetto.dev (Open trace file); nothing is sent anywhere", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise MelodeonError(f"{path} cannot be written ({error.strerror}): choose another file by -o FILE") from error


def _summary(found: list[dict[str, object]]) -> str:
    def number(category: str, phase: str, noun: str) -> str:
        count = sum(1 for event in found if event.get("cat") == category and event["ph"] == phase)
        return f"{count:,} {noun}" + ("" if count == 1 else "s")

    views = {str(event["name"]).partition(":")[0] for event in found if str(event["name"]).startswith("view ")}
    return f"{len(views)} views, {number('pause', 'X', 'pause')}, {number('fault', 'i', 'fault')}"
