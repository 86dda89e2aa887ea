"""When a run ends before its script does: after so many steps or epochs, or once a logged mean is good enough.

For `until` the values of a step go round just before its update: whoever has committed the step knows its mean, the
others run the step again. So all end after the same step, on any number of workers and whoever is lost on the way. It
costs a message a step, and on a device a wait for the values.
"""

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.spec import READERS, UNTIL
from melodeon.runtime.group import Group
from melodeon.runtime.journal import Journal
from melodeon.runtime.metrics import Metrics, mean

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Limits:
    """What the launcher says about the end."""

    def __init__(self, launch: Launch, metrics: Metrics) -> None:
        self._steps = 1 if launch.scan else launch.max_steps
        self._epochs = launch.max_epochs
        self._metrics = metrics
        self._until = Until(launch.until) if launch.until is not None else None
        self._reached = False
        self._seen: bool | None = None
        """Whether the metric of `until` was logged in some step; None: there was no step."""
        self._warned = False

    def num_epochs(self, count: int) -> int:
        """How many of the script's epochs there are."""
        return count if self._epochs is None else min(count, self._epochs)

    def lengths(self, num_epochs: int, steps: Sequence[int]) -> tuple[int, int]:
        """(Steps in all, steps an epoch), from those of each loader; `until` may end it earlier."""
        per_epoch = max(steps, default=0)
        total = num_epochs * per_epoch
        return (total if self._steps is None else min(total, self._steps)), per_epoch

    def over(self, step: int) -> bool:
        """Whether the run ends after this many steps."""
        return self._reached or (self._steps is not None and step >= self._steps)

    # -- until ---------------------------------------------------------------------------------------------------------

    def check_log(self, names: Iterable[str]) -> None:
        """Something is logged after the step's values have gone round."""
        if self._until is not None and self._until.metric in names:
            name = self._until.metric
            raise UsageError(
                f"job.log({name}=...) was called after the step's update, and until={self._until.text!r} decides with "
                "it: call it before optimizer.step()"
            )

    def gather(
        self, group: Group, step: int, width: int, also: Callable[[], None] | None = None
    ) -> Callable[[], None] | None:
        """Before a commit, learn the mean of the step, which runs `width` virtual workers; what is returned is called
        at the commit, and does `also`.
        """
        if self._until is None:
            return also
        mine = json.dumps(self._metrics.values(step, self._until.metric)).encode()
        cell: dict[int, tuple[float, float]] = {}
        for body in group.gather_in_turn(mine):
            cell.update({int(rank): (weight, value) for rank, (weight, value) in json.loads(body).items()})
        holds = self._until.holds(mean(cell, width))

        def commit() -> None:
            if also is not None:
                also()
            self._seen = self._seen or bool(cell)
            self._reached = self._reached or holds

        return commit

    def tell(self, journal: Journal, *, over: bool) -> None:
        """Say so if nothing was logged that `until` could decide with: when it is over, and once while it can wait."""
        if self._until is None or self._seen is not False or (self._warned and not over):
            return
        self._warned = True
        looked = "was not looked at: no step" if over else "could not be looked at yet: no step so far"
        text = f"until={self._until.text!r} {looked} called job.log({self._until.metric}=...)"
        journal.note(text, warning=True)

    def capture(self) -> dict[str, Any]:
        """What a run that goes on from here must know; no part of the result."""
        return {"reached": self._until.text} if self._until is not None and self._reached else {}

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go on from what `capture` gave; a run with another aim has not reached it."""
        self._reached = self._until is not None and captured.get("reached") == self._until.text


class Until:
    """`loss < 0.1`, read."""

    def __init__(self, text: str) -> None:
        self.text: str = READERS["until"]("until", text)
        match = UNTIL.fullmatch(text.strip())
        assert match is not None, "it was read"
        self.metric = match["metric"]
        self._relation, self._limit = _RELATIONS[match["relation"]], float(match["value"])

    def holds(self, found: float) -> bool:
        """Whether this mean is good enough; what is no number is not."""
        return self._relation(found, self._limit)
