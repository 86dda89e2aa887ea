"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, the script's own output always.

Everything of ours goes to stderr, so that stdout is the script's. A display takes events and output and is closed.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from melodeon.backends.local import Event
from melodeon.cli.output import said_to
from melodeon.core.text import counted
from melodeon.viz.timeline import whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 5.0
"""Between two lines about steps where there is no terminal."""


class Display(Protocol):
    """Listens to one run."""

    def event(self, event: Event) -> None:
        """Take an event of a worker."""

    def output(self, name: str, data: bytes) -> None:
        """Take whole lines of worker 0's `stdout` or `stderr`."""

    def close(self) -> None:
        """The run has ended."""


def choose(*, quiet: bool, stdout_to_stderr: bool) -> Display:
    """The display that fits: silent, a bar, or lines. `stdout_to_stderr` keeps stdout for a JSON object."""
    if quiet:
        return Quiet(stdout_to_stderr)
    if sys.stderr.isatty():
        return Bar(stdout_to_stderr)
    return Lines(stdout_to_stderr)


class Quiet:
    """Passes the script's output through and says nothing."""

    def __init__(self, stdout_to_stderr: bool) -> None:
        self._stdout_to_stderr = stdout_to_stderr

    def event(self, event: Event) -> None:
        """Events are not shown."""

    def output(self, name: str, data: bytes) -> None:
        """Pass through; a reader that went away (`| head`) does not end the run."""
        stream = sys.stdout if name == "stdout" and not self._stdout_to_stderr else sys.stderr
        with said_to(stream):
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()

    def close(self) -> None:
        """Nothing to end."""


class Lines(Quiet):
    """One line an event, steps thinned out."""

    def __init__(self, stdout_to_stderr: bool) -> None:
        super().__init__(stdout_to_stderr)
        self._next = 0.0
        self._total: object = None

    def event(self, event: Event) -> None:
        """Say it in a line."""
        if event.get("kind") == "begin":
            self._total = event.get("total_steps")
        if event.get("kind") == "step":
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + PLAIN_EVERY_S
        text = describe(event, self._total)
        if text:
            with said_to(sys.stderr):
                print(f"melodeon: {text}", file=sys.stderr, flush=True)


class Bar(Quiet):
    """A progress bar below the script's output."""

    def __init__(self, stdout_to_stderr: bool) -> None:
        super().__init__(stdout_to_stderr)
        self._progress, self._task = _bar()
        with said_to(sys.stderr):
            self._progress.start()
        self._began: tuple[float, int] | None = None

    def event(self, event: Event) -> None:
        """Move the bar for steps, print the rest above it."""
        kind, step = event.get("kind"), event.get("step")
        if kind in ("begin", "step", "end") and isinstance(step, int):
            self._move(kind == "begin", step, event)
        elif text := describe(event, None):
            with said_to(sys.stderr):
                self._progress.console.print(text, style="dim", markup=False, highlight=False)

    def output(self, name: str, data: bytes) -> None:
        """Print above the bar, or straight to where stdout was sent."""
        if name == "stdout" and not self._stdout_to_stderr and not sys.stdout.isatty():
            super().output(name, data)
            return
        from rich.text import Text

        text = data.decode(errors="replace").rstrip("\r\n")
        with said_to(sys.stderr):
            self._progress.console.print(Text.from_ansi(text), soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        with said_to(sys.stderr):
            self._progress.stop()

    def _move(self, is_begin: bool, step: int, event: Event) -> None:
        now = time.monotonic()
        if is_begin or self._began is None:
            self._began = (now, step)
        seconds, steps = now - self._began[0], step - self._began[1]
        rate = f"{steps / seconds:.1f} steps/s" if seconds > 0 and steps > 0 else ""
        values: dict[str, object] = {"completed": step, "rate": rate}
        total = event.get("total_steps")
        if is_begin and isinstance(total, int):
            values["total"] = total
        if event.get("kind") == "step":
            values["metrics"] = format_metrics(event.get("metrics"))
        update: Callable[..., None] = self._progress.update
        update(self._task, **values)


def describe(event: Event, total: object) -> str | None:
    """An event in words; None for those that only machines need."""
    kind, step = event.get("kind"), event.get("step")
    of = f"/{total}" if total else ""
    match kind:
        case "joined" if event.get("worker") == 0:
            virtual = whole(event.get("virtual_workers")) or 0
            shape = f"{counted(virtual, 'virtual worker')} as {event.get('assignment')}"
            return f"{shape} on {event.get('device')}, order {event.get('order')}, {event.get('determinism')}"
        case "step":
            return f"step {step}{of} {format_metrics(event.get('metrics'))}".rstrip()
        case "note":
            return str(event.get("text"))
        case "restart":
            return f"all workers were lost, the job starts again: {event.get('why')}"
        case "checkpoint":
            return f"checkpoint of step {step}: {event.get('path')}"
        case _:
            return None


def format_metrics(metrics: object) -> str:
    """`loss 0.6931, accuracy 0.5`; where the row stands is said otherwise."""
    if not isinstance(metrics, dict):
        return ""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
        if name not in ("step", "epoch")
    )


def _bar() -> "tuple[Progress, TaskID]":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("steps"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[metrics]}", style="cyan"),
        console=Console(stderr=True),
    )
    task = progress.add_task("steps", total=None, rate="", metrics="")
    return progress, task
