"""The runs of a verification, one after another: each with its state recorded at every step, in a folder of its own."""

import json
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import typer

from melodeon.backends.local import Event, OnEvent
from melodeon.backends.runs import Report, Request, perform
from melodeon.cli.training import explain_failure
from melodeon.cli.verify_progress import Display
from melodeon.core.definition import Definition
from melodeon.core.errors import NotBitwise, UsageError
from melodeon.core.launch import Launch
from melodeon.core.statediff import RecordedState, parse_states
from melodeon.core.verifyplan import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One run of the verification: ended well, or stopped because its own workers came apart."""

    run: PlannedRun
    report: Report
    states: dict[int, RecordedState]
    definition: Definition

    @property
    def order(self) -> str:
        """The order of summation."""
        return str(self.definition.values.get("order"))

    @property
    def steps(self) -> int:
        """The last recorded step."""
        return max(self.states, default=0)

    @property
    def digest(self) -> str | None:
        """The digest of the last recorded state; None if the workers came apart in the first step."""
        return self.states[self.steps]["digest"] if self.states else None

    @property
    def drift(self) -> str | None:
        """The sentence with which it stopped, where its workers came apart."""
        return self.report.outcome.reason


def make_stamp() -> str:
    """What the names of runs begin with that a command makes for itself; sorts by time."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"  # noqa: DTZ005 - read by people here


@dataclass(slots=True)
class Series:
    """Runs of one script with the same settings. Their folders' names begin alike."""

    script: str
    args: Sequence[str]
    launch: Launch
    display: Display
    stamp: str = field(default_factory=make_stamp)
    folders: list[Path] = field(default_factory=list)

    def train(self, run: PlannedRun) -> Done:
        """Make one planned run."""
        counts = run.assignment.counts
        launch = replace(self.launch, num_workers=len(counts), counts=counts, engine=run.engine)
        return finished(run, self.start(launch, run.label, run.slug), self.script)

    def start(self, launch: Launch, label: str, slug: str, on_event: OnEvent | None = None) -> Report:
        """Train once; a run that fails ends the command as it ended, and so does an error of `on_event`.

        One whose workers came apart is a finding, and is returned.
        """
        name = f"{self.stamp}-verify-{slug}"
        folder = Path(launch.runs_root) / name
        # Checkpoints of the script's own folder are neither read nor replaced.
        alone = replace(launch, resume=False, checkpoint_dir=str((folder / "checkpoints").resolve()))
        request = Request(
            script=self.script,
            args=self.args,
            launch=replace(alone, record_states=True),
            name=name,
            command=["melodeon", *sys.argv[1:]],
        )

        def listen(event: Event) -> None:
            if on_event is not None:
                on_event(event)
            self.display.event(event)

        self.display.begin(label)
        self.folders.append(folder)
        report = perform(request, on_event=listen)
        self.display.end(report)
        if report.outcome.exit_code not in (0, NotBitwise.exit_code):
            self.display.close()
            explain_failure(report, shown=False)
            raise typer.Exit(report.outcome.exit_code)
        return report

    def remove(self) -> None:
        """Remove the folders of all runs made so far."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def finished(run: PlannedRun, report: Report, script: str) -> Done:
    """What a run left behind, read back."""
    path = report.run_dir / "states.jsonl"
    states: dict[int, RecordedState] = {}
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            states = parse_states(file)
    if not states and report.outcome.ok:
        raise nothing_trained(script)
    definition = Definition(json.loads((report.run_dir / "definition.json").read_text(encoding="utf-8")))
    return Done(run=run, report=report, states=states, definition=definition)


def nothing_trained(script: str) -> UsageError:
    """The error for a script that ended well and left nothing to compare."""
    return UsageError(
        f"{script} ended without a step, so there is nothing to compare: "
        "it must call melodeon.join() and train in a loop over job.epochs(...)"
    )
