"""`melodeon sim`: traces under policies on a cluster that need not exist, several at once.

`sim` is longer than a function should be because its options are its signature; what it does is one line a part.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.output import require_format
from melodeon.core.errors import MelodeonError, UsageError
from melodeon.core.text import plain

if TYPE_CHECKING:
    from rich.progress import TaskID

    from melodeon.cli.simruns import Done, Jobs, Task, Tell
    from melodeon.cli.simtraces import Loaded

OUTPUTS = ("table", "json", "csv")


def sim(
    traces: Annotated[list[str] | None, typer.Argument(metavar="TRACE", help="Trace files, also gzipped.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="NAMES", help="Policies, by comma; all: every one.  [default: elasticflow]"
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", metavar="16x8:A100", help="Nodes x devices:type, or spec.csv[:type].")
    ] = "16x8:A100",
    throughputs: Annotated[
        list[str] | None,
        typer.Option("--throughputs", "-t", metavar="[TYPE=]DIR", help="Folder of tables, or Gavel's json."),
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Of the traces; else it is found out.")
    ] = None,
    generate: Annotated[
        list[str] | None, typer.Option(metavar="KIND:JOBS", help="Draw a trace, like poisson:200:gap=5min.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What is drawn comes from it.")] = 0,
    slot: Annotated[str, typer.Option(metavar="TIME", help="Least time between decisions; 0: none.")] = "60s",
    first: Annotated[int | None, typer.Option(help="Only so many jobs of each trace.")] = None,
    no_pauses: Annotated[bool, typer.Option("--no-pauses", help="Resizing and moving cost no time.")] = False,
    failures: Annotated[
        str | None, typer.Option(metavar="30d,2h", help="Nodes fail: mean time up, and in repair.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out, and count them.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep results for plot and explain.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Processes at once; else one a core.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="table|json|csv", help="How to print.")] = "table",
) -> None:
    """Simulate traces of jobs under scheduling policies.

    Prints what becomes of the jobs: deadlines met, completion times, use of the cluster.
    """
    from melodeon.cli.simruns import Task, run_all
    from melodeon.cli.simtraces import parse_policies, seconds

    require_format(output, OUTPUTS)
    _require_positive("--first", first)
    _require_positive("--jobs", jobs)
    setting = Task(
        cluster=cluster,
        seed=seed,
        slot_s=seconds(slot, "--slot"),
        pauses=not no_pauses,
        failures=_failures(failures),
        tell=sys.stderr.isatty(),
    )
    policies = parse_policies(",".join(policy or ["elasticflow"]))
    loaded = _load(traces or [], generate or [], throughputs or [], cluster, format_name, seed, skip_bad)
    names, specs = _distinct([_stem(one.trace.name) for one in loaded]), [one.trace.jobs[:first] for one in loaded]
    notes = [f"{name}: {note}" for name, one in zip(names, loaded, strict=True) for note in one.notes]
    tasks = _tasks(setting, names, policies, save)
    if output != "json":
        for note in notes:
            print(f"note: {plain(note)}", file=sys.stderr)
    with _bars(tasks, [len(some) for some in specs]) as tell:
        done = run_all(tasks, specs, processes=jobs or _cores(), tell=tell)
    _show(done, specs, notes, output)
    _conclude(done, save)


def _require_positive(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UsageError(f"{option} {value} must be at least 1: leave it out for as many as there are")


def _tasks(setting: "Task", names: Sequence[str], policies: Sequence[str], save: Path | None) -> "list[Task]":
    """Every trace under every policy; where results are kept must be possible before hours are spent on them."""
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--save {save} cannot be made ({error.strerror}): name another folder") from error
    each = [(trace, policy) for trace in range(len(names)) for policy in policies]
    files = _files([f"{names[trace]}-{policy}" for trace, policy in each])
    return [
        replace(
            setting,
            number=number,
            trace=trace,
            trace_name=names[trace],
            policy=policy,
            save=str(save / file) if save else None,
        )
        for number, ((trace, policy), file) in enumerate(zip(each, files, strict=True))
    ]


def _show(done: "Sequence[Done]", specs: "Sequence[Jobs]", notes: Sequence[str], output: str) -> None:
    from melodeon.cli import simtable

    if output == "json":
        simtable.print_as_json(done, notes)
    elif output == "csv":
        simtable.print_as_csv(done)
    else:
        simtable.print_tables(done, [len(some) for some in specs])


def _conclude(done: "Sequence[Done]", save: Path | None) -> None:
    """Say what was kept, and fail if a simulation did."""
    if save:
        kept = sum(one.problem is None for one in done)
        print(f"kept {kept} result file{'' if kept == 1 else 's'} in {save}", file=sys.stderr)
    bad = [one for one in done if one.problem is not None]
    if bad:
        more = f" ({len(bad) - 1} more failed)" if len(bad) > 1 else ""
        error = MelodeonError(f"{plain(bad[0].problem)}{more}")
        error.exit_code = bad[0].exit_code
        raise error


def _load(
    traces: Sequence[str],
    drawn: Sequence[str],
    tables: Sequence[str],
    cluster_text: str,
    format_name: str | None,
    seed: int,
    skip_bad: bool,
) -> "list[Loaded]":
    from melodeon.cli.simtraces import draw, load, parse_cluster

    if not traces and not drawn:
        raise UsageError("there is nothing to simulate: name a trace file, or draw one by --generate poisson:200")
    if format_name is not None and not traces:
        raise UsageError(f"--format {format_name} is of trace files, and none is named: leave it out with --generate")
    cluster = parse_cluster(cluster_text)
    loaded = [
        load(Path(trace), tables, cluster, format_name=format_name, seed=seed, skip_bad=skip_bad) for trace in traces
    ]
    return loaded + [draw(text, tables, cluster, seed=seed) for text in drawn]


def _failures(text: str | None) -> tuple[float, float] | None:
    from melodeon.cli.simtraces import seconds

    if text is None:
        return None
    up, comma, repair = text.partition(",")
    if not comma:
        raise UsageError(
            f"--failures {text} needs two times, until a node fails and until it is repaired: write 30d,2h"
        )
    found = seconds(up, "--failures"), seconds(repair, "--failures")
    if not all(found):
        raise UsageError(f"--failures {text} must be two times above 0, as 30d,2h: leave it out where no node fails")
    return found


def _stem(name: str) -> str:
    """A trace's name without its endings."""
    return plain(re.sub(r"(\.csv|\.json|\.jsonl|\.trace|\.gz)+$", "", name) or name)


def _distinct(stems: Sequence[str]) -> list[str]:
    """Names, numbered where two are alike."""
    made: list[str] = []
    for index, stem in enumerate(stems):
        name = f"{stem}-{index + 1}" if stems.count(stem) > 1 else stem
        while name in made or (name != stem and name in stems):
            name += "+"
        made.append(name)
    return made


def _files(names: Sequence[str]) -> list[str]:
    """A result file for each: names that differ may be alike once they are fit for a file, and none may be lost."""
    from melodeon.sim.results import ENDING

    return [stem + ENDING for stem in _distinct([re.sub(r"[^\w.=-]+", "_", name) for name in names])]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_nothing(_: "Task", __: int) -> None:
    """Nobody looks."""


@contextmanager
def _bars(tasks: "Sequence[Task]", totals: Sequence[int]) -> "Iterator[Tell]":
    """On a terminal a bar for all and one for each simulation that runs; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield _say_nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from melodeon.cli.simtable import told_apart

    titles = told_apart([f"{task.trace_name} {task.policy}" for task in tasks], 32)
    title_of = {task.number: title for task, title in zip(tasks, titles, strict=True)}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        whole = progress.add_task("jobs", total=sum(totals[task.trace] for task in tasks))
        shown: dict[int, TaskID] = {}
        counts: dict[int, int] = {}

        def tell(task: "Task", count: int) -> None:
            total = totals[task.trace]
            if task.number not in shown:
                shown[task.number] = progress.add_task(title_of[task.number], total=total)
            progress.update(shown[task.number], completed=count, visible=count < total)
            counts[task.number] = count
            progress.update(whole, completed=sum(counts.values()))

        yield tell
