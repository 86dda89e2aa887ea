"""`melodeon trace`: a run as a file for ui.perfetto.dev."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from melodeon.cli.job import RUNS_ROOT, RunName, RunsRoot, find_folder, from_here, read_lines
from melodeon.cli.output import write_file
from melodeon.core.errors import NotFound, UsageError
from melodeon.viz.words import counted


def trace(
    job: RunName = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write, - for stdout; trace.json in the run."),
    ] = None,
    runs_root: RunsRoot = RUNS_ROOT,
) -> None:
    """Draw a run's steps, pauses, views and faults for Perfetto.

    Writes a file that ui.perfetto.dev opens.
    """
    from melodeon.viz import perfetto

    if output == "":
        raise UsageError("-o '' names no file: give one, or - for stdout, or leave it out for trace.json in the run")
    folder = find_folder(job, runs_root)
    made = perfetto.trace(_events(folder), read_lines(folder / "metrics.jsonl"), name=folder.resolve().name)
    found = made["traceEvents"]
    if not isinstance(found, list) or not found:
        raise UsageError(
            f"no event of run {folder.name} says when it was, so there is nothing to draw: only runs with agents write "
            "times, so run it without --static, --assignment and --record-ops"
        )
    text = json.dumps(made, allow_nan=False)
    if output == "-":
        print(text)
        return
    path = folder / "trace.json" if output is None else Path(output)
    write_file(path, f"{text}\n".encode())
    print(f"wrote {from_here(path)}: {_summary(found)}", file=sys.stderr)
    print("next: open it at https://ui.perfetto.dev (Open trace file); nothing is sent anywhere", file=sys.stderr)


def _events(folder: Path) -> list[Mapping[str, object]]:
    """What the run has written, which must be something."""
    path = folder / "events.jsonl"
    if not path.is_file():
        raise NotFound(f"run {folder.name} has no events.jsonl: only runs started by `melodeon run` have one")
    found = list(read_lines(path))
    if not found:
        raise UsageError(
            f"{from_here(path)} holds no event: each of its lines should be a JSON object, and none is; wait if the "
            "run has just begun, or name another one"
        )
    return found


def _summary(found: list[dict[str, object]]) -> str:
    def number(category: str, phase: str) -> int:
        return sum(1 for event in found if event.get("cat") == category and event["ph"] == phase)

    views = {str(event["name"]).partition(":")[0] for event in found if str(event["name"]).startswith("view ")}
    figures = {"view": len(views), "pause": number("pause", "X"), "fault": number("fault", "i")}
    return ", ".join(counted(amount, noun) for noun, amount in figures.items())
