"""A total batch that may grow during a job: its factor, who decides it, and the learning rate that follows it.

With batch factor k a step runs V * k virtual workers, on the same workers and in the same shares. It changes the
result, so the script must agree to it (`job.hybrid()`); what it then depends on is the history of (step, factor) alone,
which is part of the job's state. Who decides is one of

    the master   `melodeon run --hybrid`: with a view, when the job grows (Elan's Algorithm 1)
    the script   `job.batch_factor = 2`, between epochs
    a history    `melodeon run --batch-history RUN`: an earlier run again, on any workers

A new factor is written down by the commit of its first step, so an interrupted one leaves no trace.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from melodeon.coord.hybrid import rate_at
from melodeon.core.assignment import Assignment
from melodeon.core.batches import BatchHistory, check_factor, check_history, factor_at
from melodeon.core.definition import Value
from melodeon.core.errors import DefinitionError, UsageError
from melodeon.core.launch import Launch
from melodeon.runtime.journal import Journal

FILE = "batches.json"
"""In the run's folder: the history, for whoever wants to run it again."""


class Batches:
    """The batch factor of one job, as one worker knows it."""

    def __init__(self, launch: Launch) -> None:
        self.allowed = False
        """Whether the script has agreed."""
        self.running = 1
        """The factor that the engine is set up for."""
        self.history: BatchHistory = ()
        self.ramp_steps = 0
        self._by_master = launch.hybrid
        self._replay = None if launch.batch_history is None else check_history(launch.batch_history)
        self._wish: int | None = None
        self._told = False

    # -- setting up ----------------------------------------------------------------------------------------------------

    def allow(self, ramp_steps: int, history: Iterable[object] | None) -> None:
        """The script agrees to other batches, or names all of them itself."""
        if isinstance(ramp_steps, bool) or not isinstance(ramp_steps, int) or ramp_steps < 0:
            raise UsageError(f"job.hybrid(ramp_steps={ramp_steps!r}) must be a whole number of steps, 0 for no ramp")
        self.allowed, self.ramp_steps = True, ramp_steps
        if history is not None and self._replay is None:
            self._replay = check_history(history)
        if self._by_master and self._replay is not None:
            raise UsageError("--hybrid decides the batches and a batch history names them: leave one of both out")

    def check(self, *, order: str, engine: str, loaders: Iterable[tuple[str, bool]]) -> None:
        """Before the first step: refuse what cannot be.

        `loaders` are what each does with uneven ends, and whether its samples have numbers.
        """
        if not self.allowed:
            if self._by_master or self._replay is not None:
                asked = "--hybrid" if self._by_master else "--batch-history"
                raise UsageError(
                    f"{asked} changes the total batch, which changes the result, and the script has not agreed to it: "
                    f"call job.hybrid() before job.epochs(...), or leave {asked} out"
                )
            return
        if order != "tree" or engine != "melodeon":
            raise UsageError(
                f"job.hybrid() needs order='tree' and melodeon's own engine, and this job has order={order!r} on "
                f"{engine}: there the number of processes defines the result, and cannot change"
            )
        for uneven, numbered in loaders:
            if uneven == "drop" or not numbered:
                what = "uneven='drop'" if numbered else "a Partitioned set"
                raise UsageError(
                    f"job.hybrid() does not go with {what}, where a larger batch would change which samples an epoch "
                    "has: use a dataset with numbered samples and uneven='exact' or 'pad'"
                )

    def unused(self) -> str:
        """A sentence, once, if the script has agreed to other batches and nobody decides any."""
        if self._told or not self.allowed:
            return ""
        self._told = True
        if self._by_master or self._replay is not None or self._wish is not None:
            return ""
        return (
            "the script agrees to other batches with job.hybrid(), and nobody decides any: start it with "
            "`melodeon run --hybrid`, or set job.batch_factor between epochs"
        )

    def facts(self) -> dict[str, Value]:
        """What of it defines the bits beforehand; the history is in the state."""
        return {"hybrid": f"ramps of {self.ramp_steps} steps"} if self.allowed else {}

    # -- which factor --------------------------------------------------------------------------------------------------

    @property
    def factor(self) -> int:
        """The factor of the last committed step."""
        return self.history[-1][1] if self.history else 1

    def wish(self, factor: int) -> None:
        """The script wants this factor from the next step on. A history that is run again knows better."""
        check_factor("job.batch_factor", factor)
        if not self.allowed:
            raise UsageError(
                f"job.batch_factor = {factor} changes the total batch: agree to it with job.hybrid() before "
                "job.epochs(...)"
            )
        if self._by_master:
            raise UsageError(
                f"job.batch_factor = {factor} was set and --hybrid lets the master decide: leave one of both out"
            )
        self._wish = factor

    def at_entry(self, step: int, told: int) -> int:
        """The factor to enter a view with at `step`; `told` is the view's own, 0 where it has none."""
        if self._replay is not None:
            return factor_at(self._replay, step)
        return told if self._by_master and told > 0 else self.factor

    def due(self, step: int) -> int | None:
        """The factor to change to before this step, inside a view; None: go on."""
        if self._by_master:
            return None
        if self._replay is not None:
            wanted = factor_at(self._replay, step)
        else:
            wanted = self.factor if self._wish is None else self._wish
        return wanted if wanted != self.running else None

    def committed(self, step: int) -> bool:
        """The update of this step is done; True if it was the first with another factor."""
        if self.running == self.factor:
            return False
        self.history = (*self.history, (step, self.running))
        return True

    def width(self, step: int, virtual_workers: int) -> int:
        """How many virtual workers a committed step had."""
        return virtual_workers * factor_at(self.history, step)

    # -- the learning rate ---------------------------------------------------------------------------------------------

    def follow(self, optimizer: torch.optim.Optimizer, step: Callable[[], int | None]) -> None:
        """Multiply the optimizer's learning rates while it steps; `step()` is None outside the job's steps."""
        before: list[Any] = []

        def raise_rates(stepping: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
            now = step()
            before.clear()
            rate = 1.0 if now is None else self._rate(now)
            if rate != 1.0:
                before.extend(group["lr"] for group in stepping.param_groups)
                for group in stepping.param_groups:
                    group["lr"] = group["lr"] * rate

        def put_back(stepping: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
            for group, rate in zip(stepping.param_groups, before, strict=False):
                group["lr"] = rate
            before.clear()

        optimizer.register_step_pre_hook(raise_rates)
        optimizer.register_step_post_hook(put_back)

    def _rate(self, step: int) -> float:
        running = () if self.running == self.factor else ((step, self.running),)
        return rate_at(step, (*self.history, *running), self.ramp_steps)

    # -- state ---------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """What belongs to the job's state: nothing without `job.hybrid()`.

        Also what the script has said: whoever takes the state over may begin behind the line that says it.
        """
        wish = {} if self._wish is None else {"wish": self._wish}
        return {"batches": [list(entry) for entry in self.history], **wish} if self.allowed else {}

    def restore(self, captured: Mapping[str, Any], step: int) -> None:
        """Go on from what `capture` gave."""
        history = check_history(captured.get("batches", ()))
        if self._replay is not None and history != tuple(entry for entry in self._replay if entry[0] < step):
            raise DefinitionError(
                f"the state of step {step} has the batch history {list(history)}, and {list(self._replay)} is to be "
                "run again: start from the beginning with --no-resume, or give the history of that run"
            )
        self.history = history
        self._wish = captured.get("wish", self._wish)

    def tell(self, journal: Journal) -> None:
        """Write down the newest change, from the worker that writes."""
        self.write(journal.folder)
        step, factor = self.history[-1]
        who = "the batch history" if self._replay is not None else "the master" if self._by_master else "the script"
        journal.event("batch", step=step, factor=factor, why=f"{who} says so")

    def write(self, folder: Path) -> None:
        """Leave the history in the run's folder; a full disk does not stop the training."""
        if not self.history:
            return
        entries = [{"step": step, "factor": factor} for step, factor in self.history]
        body = json.dumps({"ramp_steps": self.ramp_steps, "history": entries}, indent=2) + "\n"
        with suppress(OSError):
            (folder / f".{FILE}").write_text(body)
            (folder / f".{FILE}").replace(folder / FILE)


def scaled(assignment: Assignment, factor: int) -> Assignment:
    """The same shares of so many times the virtual workers."""
    return Assignment(tuple(count * factor for count in assignment.counts))
