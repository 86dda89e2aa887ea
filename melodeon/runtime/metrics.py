"""`job.log(...)`: the mean over virtual workers, summed in the fixed order, whoever computed what.

Values are kept as they are (a tensor is not read, so nothing waits for a device) and exchanged every few steps in one
message.
"""

import json
from collections.abc import Callable, Mapping
from weakref import ref

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.core import tree
from melodeon.core.errors import UsageError
from melodeon.runtime.group import Group

Row = dict[str, float | int]
Cells = dict[int, dict[str, dict[int, tuple[float, float]]]]
"""Step -> name -> virtual rank -> (weight, value)."""


class Metrics:
    """Collects values by step and virtual rank; hands out one row of means per step."""

    def __init__(self, group: Group, virtual_workers: int, every: int, emit: Callable[[Row], None]) -> None:
        self.group = group
        self.width: Callable[[int], int] = lambda _: virtual_workers
        """How many virtual workers a step had."""
        self._every = every
        self._emit = emit
        self._values: dict[int, dict[str, dict[int, tuple[float, torch.Tensor | float]]]] = {}
        self._epochs: dict[int, int] = {}
        self._told: tuple[ref[Group], Cells] = (ref(group), {})
        """The last exchange: in which view, and all that was said in it."""
        self.latest: Mapping[str, float | int] = {}
        self._passed = self._used = False
        """Whether a step has passed here, and whether anything was ever said."""

    def add(
        self, step: int, epoch: int, rank: int, weight: float, values: Mapping[str, torch.Tensor | float | None]
    ) -> None:
        """What virtual worker `rank` says in `step`; None says nothing; a second value replaces the first."""
        self._epochs[step] = epoch
        self._used = True
        for name, value in values.items():
            if value is not None:
                kept = _number(name, value)
                self._values.setdefault(step, {}).setdefault(name, {})[rank] = (weight, kept)

    def values(self, step: int, name: str) -> dict[int, tuple[float, float]]:
        """What was said here under a name in a step that is not exchanged yet: rank -> (weight, value)."""
        found = self._values.get(step, {}).get(name, {})
        return {rank: (weight, float(value)) for rank, (weight, value) in found.items()}

    @property
    def quiet(self) -> bool:
        """Whether nobody here says anything: a script that logs does so in every step."""
        return self._passed and not self._used

    def forget(self, step: int) -> None:
        """Drop what was said in a step that is begun again, or never will be."""
        self._values.pop(step, None)

    def boundary(self, steps_done: int) -> None:
        """A step is finished: exchange if it is time."""
        self._passed = True
        if steps_done % self._every == 0:
            self.flush(steps_done)

    def flush(self, steps_done: int) -> None:
        """Exchange what was collected and emit the rows. Every worker calls it at the same step.

        What was said in a step that is not done stays here: it may have been given up, and is said again if so. It was
        not if others turn out to have finished it.
        """
        mine = {**self._told_before(), **self._said(steps_done)}
        epochs = {step: self._epochs[step] for step in mine}  # whoever writes the rows may have come later
        payloads = self.group.gather_bytes(
            json.dumps([mine, epochs]).encode()
        )  # if it fails, all is told with the next
        self._values = {step: names for step, names in self._values.items() if step >= steps_done}
        merged: Cells = {}
        for payload in payloads:
            cells, epochs = json.loads(payload)
            self._epochs |= {int(step): epoch for step, epoch in epochs.items()}
            for step, names in cells.items():
                for name, by_rank in names.items():
                    cell = merged.setdefault(int(step), {}).setdefault(name, {})
                    cell.update({int(rank): (weight, value) for rank, (weight, value) in by_rank.items()})
        self._told = ref(self.group), merged
        failpoint("boundary.metrics")
        for step in sorted(merged):
            row: Row = {"step": step + 1, "epoch": self._epochs[step]}
            # Of a step in which a worker was lost, all that is left may be the word of those who had no samples.
            told = {name: cell for name, cell in sorted(merged[step].items()) if any(w for w, _ in cell.values())}
            row |= {name: mean(cell, self.width(step)) for name, cell in told.items()}
            self.latest = row
            self._emit(row)
        self._epochs = {step: epoch for step, epoch in self._epochs.items() if step >= steps_done or step in merged}

    def _said(self, steps_done: int) -> Cells:
        """What was said here in steps that are done."""
        return {
            step: {
                name: {rank: (weight, float(value)) for rank, (weight, value) in by_rank.items()}
                for name, by_rank in names.items()
            }
            for step, names in self._values.items()
            if step < steps_done
        }

    def _told_before(self) -> Cells:
        """What everybody said in the last exchange of an earlier view: if somebody was lost meanwhile, some may not
        have heard it, and not every exchange is done again.
        """
        group, merged = self._told
        return merged if group() is not self.group else {}


def _number(name: str, value: object) -> torch.Tensor | float:
    """One number, kept as it is now: the script may go on to write to the tensor that it logged."""
    if name in ("step", "epoch"):
        raise UsageError(f"job.log({name}=...) is the name of a column that every row has: choose another name")
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value.detach().clone()
        found = "a complex number" if value.numel() == 1 else str(tuple(value.shape))
    else:
        try:
            return float(value)  # type: ignore[arg-type]  # what has no number says so
        except OverflowError:
            found = "a number past the range of a float"
        except (TypeError, ValueError, RuntimeError):
            found = repr(value)
    raise UsageError(f"job.log({name}=...) was given {found}: log one number a virtual worker, such as x.mean()")


def mean(values: Mapping[int, tuple[float, float]], virtual_workers: int) -> float:
    """The weighted mean of `{rank: (weight, value)}`, both sums taken in the tree over ranks."""
    leaves = [values.get(rank, (0.0, 0.0)) for rank in range(virtual_workers)]
    total = _tree_sum([weight * value if weight else 0.0 for weight, value in leaves])
    weight = _tree_sum([weight for weight, _ in leaves])
    return total / weight if weight else float("nan")


def _tree_sum(leaves: list[float]) -> float:
    spans = [(rank, rank + 1) for rank in range(len(leaves))]
    sums = list(leaves)
    for into, other in tree.fold(spans, len(leaves)):
        sums[into] += sums[other]
    return sums[0]
