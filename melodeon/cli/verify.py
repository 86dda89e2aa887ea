"""`melodeon verify`: a script trained on several worker counts, or against a receipt, and compared bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from melodeon.backends.local import Event
from melodeon.cli.job import RUNS_ROOT, RunsRoot
from melodeon.cli.options import Args, Determinism, Json, Order, Script, Threads
from melodeon.cli.training import checked_launch
from melodeon.cli.verify_progress import choose_display
from melodeon.cli.verify_receipt import check_receipt
from melodeon.cli.verify_report import differences, earliest, show, show_json
from melodeon.cli.verify_runs import Done, Series, finished, nothing_trained
from melodeon.core.assignment import Assignment
from melodeon.core.determinism import DEFAULT
from melodeon.core.errors import MelodeonError, NotBitwise, UsageError
from melodeon.core.verifyplan import PlannedRun, parse_counts, plan_runs

DEFAULT_STEPS = 20


def verify(
    script: Script,
    args: Args = None,
    workers: Annotated[str | None, typer.Option(help="Worker counts; 1,2,3 by default.")] = None,
    assignment: Annotated[list[str] | None, typer.Option(help="One more split, like 3,1,4; repeatable.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run; 20 by default.")] = None,
    against: Annotated[str | None, typer.Option(help="ddp: compare with stock DDP, too.")] = None,
    receipt: Annotated[str | None, typer.Option(help="Check this receipt instead.")] = None,
    order: Order = None,
    determinism: Determinism = None,
    threads: Threads = None,
    runs_root: RunsRoot = RUNS_ROOT,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the runs' folders.")] = False,
    json: Json = False,
) -> None:
    """Prove that SCRIPT gives the same bits on any number of workers.

    Trains at each worker count and at uneven splits, and compares the whole state after every step; with --receipt,
    trains once and checks the receipt of another run. Exit code 0: equal, 6: different.
    """
    counts = parse_counts(workers) if workers is not None else None
    extra = [Assignment.parse(text) for text in assignment or []]
    if receipt is not None:
        given = {"--assignment": assignment, "--steps": steps, "--against": against, "--order": order}
        given |= {"--determinism": determinism, "--threads": threads}
        _refuse_with_receipt([name for name, value in given.items() if value])
        check_receipt(receipt, script, args or [], counts or (1,), runs_root, keep=keep, as_json=json)
        return
    launch = checked_launch(
        script,
        determinism=DEFAULT if determinism is None else determinism,
        threads=threads,
        order=_order(order, against),
        steps=steps or DEFAULT_STEPS,
        runs_root=runs_root,
    )
    series = Series(script, args or [], launch, choose_display())
    try:
        done = _train_all(series, counts, extra, against_ddp=against is not None)
    finally:
        series.display.close()
    _judge(series, done, keep=keep, as_json=json)


def _order(order: str | None, against: str | None) -> str | None:
    """The order for all runs; None leaves it to the script."""
    if against is None:
        return order
    if against != "ddp":
        raise UsageError(f"--against {against!r} is not known: stock DistributedDataParallel is --against ddp")
    if order not in (None, "ddp"):
        raise UsageError(
            f"--order {order} is not the order in which DistributedDataParallel sums: leave it out with --against ddp"
        )
    return "ddp"


def _refuse_with_receipt(given: Sequence[str]) -> None:
    if given:
        raise UsageError(
            f"{', '.join(given)} and --receipt exclude each other: it brings its settings and its number of steps"
        )


def _train_all(
    series: Series, counts: Sequence[int] | None, extra: Sequence[Assignment], *, against_ddp: bool
) -> list[Done]:
    """All runs. How many virtual workers there are is heard from the first, which ends at once if the plan fails."""
    plan: tuple[PlannedRun, ...] = ()

    def hear(event: Event) -> None:
        nonlocal plan
        if event.get("kind") == "joined" and not plan:
            plan = plan_runs(int(str(event["virtual_workers"])), counts, extra, against_ddp=against_ddp)

    first = counts[0] if counts else 1
    try:
        label = "1 worker" if first == 1 else f"{first} workers"
        report = series.start(replace(series.launch, num_workers=first), label, "first", hear)
        if not plan:
            raise nothing_trained(series.script)
    except MelodeonError:
        series.remove()
        raise
    return [finished(plan[0], report, series.script), *(series.train(run) for run in plan[1:])]


def _judge(series: Series, done: Sequence[Done], *, keep: bool, as_json: bool) -> None:
    """Compare, say what was found, clear up, and end with the right exit code."""
    # Stock DDP, which nobody doubts, is the reference where it ran; a run that parts within itself is none.
    whole = [each for each in done if each.drift is None] or done
    reference = whole[-1] if whole[-1].run.is_stock else whole[0]
    found = differences(reference, [each for each in done if each is not reference])
    equal = earliest(found) is None
    kept = keep or not equal
    (show_json if as_json else show)(series, done, reference, found, kept=kept)
    if not kept:
        series.remove()
    if not equal:
        raise typer.Exit(NotBitwise.exit_code)
