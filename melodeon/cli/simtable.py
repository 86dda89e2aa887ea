"""The figures of simulations as tables of 80 columns, JSON or csv."""

import csv
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

from melodeon.cli.output import WIDTH, columns, print_json
from melodeon.cli.simruns import Done, Task
from melodeon.sim.record import cluster_name

Values = dict[str, int | float | None]
Column = tuple[str, Callable[[Values], str]]


def _time(key: str) -> Callable[[Values], str]:
    def cell(values: Values) -> str:
        found = values.get(key)
        return "-" if found is None else _length(found)

    return cell


def _share(key: str) -> Callable[[Values], str]:
    def cell(values: Values) -> str:
        found = values.get(key)
        return "-" if found is None else f"{100 * found:.1f} %"

    return cell


def _number(key: str, form: str = ",.0f") -> Callable[[Values], str]:
    def cell(values: Values) -> str:
        found = values.get(key)
        return "-" if found is None else format(found, form)

    return cell


def _length(seconds: float) -> str:
    """A length of time in few letters, hours and days to three digits."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 59.5 * 60:
        return f"{seconds / 60:.{1 if seconds < 597 else 0}f} min"
    value, unit = (seconds / 3600, "h") if seconds < 86_400 else (seconds / 86_400, "d")
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


TABLES: tuple[tuple[Column, ...], ...] = (
    (
        ("in time", _share("deadline_ratio")),
        ("rejected", _number("num_rejected")),
        ("missed", _number("num_missed")),
        ("JCT mean", _time("jct_mean_s")),
        ("median", _time("jct_median_s")),
        ("p99", _time("jct_p99_s")),
        ("makespan", _time("makespan_s")),
    ),
    (
        ("pending", _time("pending_mean_s")),
        ("JCT small", _time("jct_small_mean_s")),
        ("medium", _time("jct_medium_mean_s")),
        ("large", _time("jct_large_mean_s")),
        ("fairness", _number("fairness_mean", ".2f")),
        ("worst", _number("fairness_worst", ".1f")),
    ),
    (
        ("used", _share("utilisation")),
        ("efficient", _share("cluster_efficiency")),
        ("resizes", _number("num_resizes")),
        ("moves", _number("num_migrations")),
        ("stops", _number("num_suspensions")),
        ("decide ms", _number("decision_mean_ms", ".2f")),
        ("p99 ms", _number("decision_p99_ms", ".2f")),
    ),
)
"""Three narrow tables, since all figures in one would not fit."""


def print_tables(done: Sequence[Done], num_jobs: Sequence[int]) -> None:
    """Tables for every trace, given how many jobs each has."""
    shown = False
    for number, count in enumerate(num_jobs):
        mine = [one for one in done if one.task.trace == number and one.problem is None]
        if not mine:
            continue
        title = _title(mine[0].task, count)
        print(f"\n{title}" if shown else title)
        shown = True
        for table in TABLES:
            rows = [["policy", *(name for name, _ in table)]]
            rows += [["", *(cell(one.values) for _, cell in table)] for one in mine]
            rows = _named(rows, [one.task.policy for one in mine])
            print()
            print("\n".join(columns(rows, gives_way=0, numbers=range(1, len(rows[0])))))


def _named(rows: list[list[str]], policies: Sequence[str]) -> list[list[str]]:
    """The rows under the first with the policies' names, in what room the figures leave."""
    room = WIDTH - sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    names = told_apart(policies, max(room, len(rows[0][0])))
    return [rows[0], *([name, *row[1:]] for name, row in zip(names, rows[1:], strict=True))]


def told_apart(names: Sequence[str], room: int) -> list[str]:
    """Names in so many letters: long ones lose their middle, and so much of their beginning that they still differ."""
    heads = sorted(range(1, room - 1), key=lambda head: abs(head - room // 2))
    cuts = [[n if len(n) <= room else f"{n[:head]}…{n[head + 1 - room :]}" for n in names] for head in heads]
    return next((cut for cut in cuts if len(set(cut)) == len(names)), cuts[0])


def _title(task: Task, num_jobs: int) -> str:
    slots = f"a decision every {task.slot_s:g} s at most" if task.slot_s else "no slots"
    jobs = "1 job" if num_jobs == 1 else f"{num_jobs:,} jobs"
    title = f"{task.trace_name}: {jobs} on {cluster_name(task.cluster)}, seed {task.seed}, {slots}"
    return textwrap.fill(title, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def print_as_json(done: Iterable[Done], notes: Sequence[str]) -> None:
    """One object with a result for each simulation."""
    print_json({"results": [_flat(one) for one in done], "notes": list(notes)})


def print_as_csv(done: Sequence[Done]) -> None:
    """A header, and a line a simulation."""
    rows = [_flat(one) for one in done if one.problem is None]
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _flat(one: Done) -> dict[str, object]:
    task = one.task
    about: dict[str, object] = {
        "trace": task.trace_name,
        "policy": task.policy,
        "cluster": task.cluster,
        "slot_s": task.slot_s,
        "seed": task.seed,
        "file": task.save,
    }
    return about | ({"error": one.problem} if one.problem else one.values)
