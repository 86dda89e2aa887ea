"""What a person sees while several runs follow one another: a bar a run on a terminal, a line a run elsewhere.

The script's own output would come once a run, so it stays in the logs.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from melodeon.backends.local import Event
from melodeon.backends.runs import Report
from melodeon.core.text import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Display(Protocol):
    """Listens to one run after another."""

    def begin(self, label: str) -> None:
        """A run starts."""

    def event(self, event: Event) -> None:
        """Take an event of the run in progress."""

    def end(self, report: Report) -> None:
        """It has ended."""

    def close(self) -> None:
        """All have."""


def choose_display() -> Display:
    """Bars on a terminal, else lines; on stderr, so that stdout is for the result."""
    return Bars() if sys.stderr.isatty() else Lines()


class Lines:
    """One line a run, and the notes of its workers."""

    def __init__(self) -> None:
        self._label = ""

    def begin(self, label: str) -> None:
        """Remember whose events follow."""
        self._label = label

    def event(self, event: Event) -> None:
        """Say notes; steps are too many."""
        if event.get("kind") == "note":
            print(f"melodeon: {event.get('text')}", file=sys.stderr)

    def end(self, report: Report) -> None:
        """Say how it went."""
        how = f"{counted(report.steps or 0, 'step')} in" if report.outcome.ok else "failed after"
        print(f"melodeon: {self._label}: {how} {report.seconds:.1f} s", file=sys.stderr)

    def close(self) -> None:
        """Nothing to end."""


class Bars:
    """One bar a run."""

    def __init__(self) -> None:
        self._progress = _bars()
        self._task: TaskID | None = None
        self._progress.start()

    def begin(self, label: str) -> None:
        """Add its bar."""
        self._task = self._progress.add_task(label, total=None)

    def event(self, event: Event) -> None:
        """Move its bar; say notes above."""
        step, total = event.get("step"), event.get("total_steps")
        if event.get("kind") == "note":
            self._progress.console.print(str(event.get("text")), style="dim", markup=False, highlight=False)
        elif isinstance(step, int):
            self._update(completed=step, **({"total": total} if isinstance(total, int) else {}))

    def end(self, report: Report) -> None:
        """Leave its bar as it stands; a run may end before its last step."""
        if report.outcome.ok and report.steps is not None:
            self._update(completed=report.steps, total=report.steps)
        assert self._task is not None
        self._progress.stop_task(self._task)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._progress.stop()

    def _update(self, **values: int) -> None:
        update: Callable[..., None] = self._progress.update
        update(self._task, **values)


def _bars() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
