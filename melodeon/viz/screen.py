"""`melodeon top`'s screen: a job's status and its newest events as one picture that fits 80 columns.

A picture is made anew each time from values alone, so that what a person saw can be made again in a test.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from melodeon.viz.timeline import Event, is_fault, mappings, pauses_of, seconds_of, whole
from melodeon.viz.words import counted, milliseconds, number, plain, sentence

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
"""Of workers, by their number; a worker keeps its own through every view."""
SPARKS = "▁▂▃▄▅▆▇█"
BUSY_CELLS = 10
NUM_VIEWS, NUM_EVENTS = 5, 3
FIXED_LINES = 12
"""What is above and between the tables."""

Samples = Sequence[tuple[float, int]]
"""(seconds, steps done by then), oldest first."""


def screen(
    status: Mapping[str, object],
    events: Sequence[Event] = (),
    *,
    samples: Samples = (),
    width: int = 80,
    height: int = 40,
) -> RenderableType:
    """One picture of a job. What does not fit `height` is counted instead of shown."""
    workers = mappings(status.get("workers"))
    history = mappings(status.get("history"))
    news = [(event, text) for event in events if event.get("kind") != "view" and (text := sentence(event))]
    parts: list[RenderableType] = [_head(status, events, width), _pace(status, workers, samples, width)]
    if seated := [worker for worker in workers if _span(worker)]:
        parts += [Text(), _assignment(seated, width)]
    views, said = history[-NUM_VIEWS:][::-1], news[-NUM_EVENTS:][::-1]
    room = max(1, height - FIXED_LINES - len(views) - len(said))
    parts += [Text(), _workers(workers[:room], width)]
    if len(workers) > room:
        parts.append(Text(f"... and {counted(len(workers) - room, 'more worker')}", style="dim"))
    if views:
        parts += [Text(), _views(views, width)]
    if said:
        parts += [Text(), *(_line(event, text, width) for event, text in said)]
    return Group(*parts)


def rate(samples: Samples, window_s: float = 10.0) -> float | None:
    """Steps per second over the newest `window_s`; None where nothing can be said."""
    if len(samples) < 2:
        return None
    end, done = samples[-1]
    begin, before = next(((at, steps) for at, steps in samples if at >= end - window_s), samples[0])
    return (done - before) / (end - begin) if end > begin and done >= before else None


def rates(samples: Samples, num: int) -> list[float]:
    """Steps per second in `num` equal stretches of the samples' time, oldest first."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return []
    begin, end = samples[0][0], samples[-1][0]
    edges = [begin + (end - begin) * index / num for index in range(num + 1)]
    done = [_steps_at(samples, edge) for edge in edges]
    return [max(0.0, b - a) * num / (end - begin) for a, b in pairwise(done)]


def _head(status: Mapping[str, object], events: Iterable[Event], width: int) -> RenderableType:
    total = next((event.get("total_steps") for event in events if event.get("kind") == "begin"), None)
    of = f" of {number(total)}" if total else ""
    grid = _grid(width, "left", "right")
    left = Text.assemble((plain(status.get("job") or "?"), "bold"), "  ", _phase(status.get("phase")))
    grid.add_row(left, f"view {number(status.get('generation'))}   step {number(status.get('step'))}{of}")
    return grid


def _pace(
    status: Mapping[str, object], workers: Sequence[Mapping[str, object]], samples: Samples, width: int
) -> RenderableType:
    pace = rate(samples)
    left = Text("- steps/s" if pace is None else f"{pace:.3g} steps/s")
    if history := rates(samples, 24):
        highest = max(history) or 1.0
        levels = [round((len(SPARKS) - 1) * value / highest) for value in history]
        left.append("  " + "".join(SPARKS[level] for level in levels), style="green")
    facts = [counted(sum(1 for worker in workers if _span(worker)), "worker")]
    if (restarts := whole(status.get("restarts_left"))) is not None:
        facts.append(f"{counted(restarts, 'restart')} left")
    if queue := status.get("queue"):
        facts.append(f"{len(queue)} queued" if isinstance(queue, Sequence) else "changes queued")
    grid = _grid(width, "left", "right")
    grid.add_row(left, ", ".join(facts))
    return grid


def _assignment(workers: Sequence[Mapping[str, object]], width: int) -> Text:
    """A bar as wide as the screen: each worker's share of the virtual workers, in the order of their ranks."""
    spans = sorted((span, whole(worker.get("worker")) or 0) for worker in workers if (span := _span(worker)))
    total = max(span[1] for span, _ in spans) + 1
    cells = width - 1
    bar = Text(no_wrap=True, overflow="crop")
    for (first, last), worker in spans:
        begin, end = first * cells // total, (last + 1) * cells // total
        label = f"│{worker}"[: end - begin]
        bar.append(label.ljust(end - begin, "░"), style=COLOURS[worker % len(COLOURS)])
    return bar.append("│", style=COLOURS[spans[-1][1] % len(COLOURS)])


def _workers(workers: Sequence[Mapping[str, object]], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=width, header_style="dim", show_edge=False)
    for name, justify in (("worker", "right"), ("agent", "left"), ("pid", "right"), ("phase", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # the names are rich's
    table.add_column("virtual", no_wrap=True)
    table.add_column("busy a step", no_wrap=True, min_width=BUSY_CELLS + 8)
    table.add_column("step", justify="right", no_wrap=True)
    busiest = max((_busy(worker) or 0.0 for worker in workers), default=0.0)
    for worker in workers:
        index = whole(worker.get("worker")) or 0
        busy = _busy(worker)
        cells = round(BUSY_CELLS * busy / busiest) if busy and busiest else 0
        bar = Text("█" * cells + " " * (BUSY_CELLS - cells), style=COLOURS[index % len(COLOURS)])
        table.add_row(
            Text(number(worker.get("worker")), style=COLOURS[index % len(COLOURS)]),
            Text(plain(worker.get("agent") or "-")),
            str(worker.get("pid") or "-"),
            _phase("leaving" if worker.get("released") else worker.get("phase")),
            Text(plain(worker.get("ranks") or "-")),
            bar.append("" if busy is None else f" {milliseconds(busy / 1000)}", style="default"),
            number(worker.get("step")),
        )
    return table


def _views(views: Sequence[Mapping[str, object]], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=width, header_style="dim", show_edge=False)
    for name in ("view", "from step", "pause"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", ratio=1, overflow="fold")
    for view in views:
        pause = max(pauses_of(view).values(), default=None)
        table.add_row(
            number(view.get("generation")),
            number(view.get("step")),
            milliseconds(pause),
            Text(plain(view.get("reason") or "-")),
        )
    return table


def _line(event: Event, text: str, width: int) -> Text:
    at = seconds_of(event)
    clock = "" if at is None else f"{datetime.fromtimestamp(at, UTC).astimezone():%H:%M:%S}  "
    style = "red" if is_fault(event) else ""
    line = Text.assemble((clock, "dim"), (text, style))
    line.truncate(width, overflow="ellipsis")
    return line


def _phase(phase: object) -> Text:
    styles = {"member": "green", "training": "green", "gone": "red", "failed": "red", "done": "dim", "ready": "cyan"}
    text = plain(phase or "-")
    return Text(text, style=styles.get(text, "yellow"))


def _busy(worker: Mapping[str, object]) -> float | None:
    value = worker.get("busy_ms")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _span(worker: Mapping[str, object]) -> tuple[int, int] | None:
    """The first and last virtual rank of `0-3` or `7`."""
    first, _, last = str(worker.get("ranks") or "").partition("-")
    begin, end = whole(first), whole(last or first)
    return None if begin is None or end is None or end < begin else (begin, end)


def _steps_at(samples: Samples, at: float) -> float:
    for (begin, done), (end, now_done) in pairwise(samples):
        if begin <= at <= end:
            return done + (now_done - done) * (at - begin) / (end - begin) if end > begin else now_done
    return samples[-1][1]


def _grid(width: int, *justify: str) -> Table:
    grid = Table.grid(expand=True)
    grid.width = width
    for side in justify:
        grid.add_column(justify=side, no_wrap=True)  # type: ignore[arg-type]  # the names are rich's
    return grid
