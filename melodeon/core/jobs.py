"""What a user asks for: one job as a frozen value, with its goal and its scaling curves."""

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import NewType

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.curve import Ladder, ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.goodput import Goodput
from melodeon.core.mixture import loads, step_s

JobId = NewType("JobId", str)
Curves = tuple[tuple[DeviceType, ScalingCurve], ...]


class Goal(StrEnum):
    """What a job's deadline means."""

    HARD = "hard"
    """Admitted only if the deadline can be guaranteed."""
    SOFT = "soft"
    """Always admitted; finishing late is still worth something."""
    BEST_EFFORT = "best_effort"
    """No deadline; as soon as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as submitted. Times are seconds on the cluster's clock."""

    id: JobId
    submit_s: float = 0.0
    iterations: float
    """Steps to train; the job ends after the last."""
    curves: Curves
    """One scaling curve for each device type that the job can run on, preferred type first."""
    deadline_s: float | None = None
    goal: Goal = Goal.HARD
    """`Goal.BEST_EFFORT` where there is no deadline."""
    requested_workers: int = 1
    """What the user would have asked for; schedulers that are not elastic use it."""
    min_workers: int = 1
    max_workers: int | None = None
    user: str = ""
    weight: float = 1.0
    """Priority for schedulers that share by weight."""
    model: str = ""
    batch_size: int = 0
    duration_s: float | None = None
    """How long the job took where the trace was recorded."""
    goodput: Goodput | None = None
    """How its progress depends on the batch size; None: the batch size does not change."""
    virtual_workers: int | None = None
    """How many its step is made of, where that is known; None: work is divided among types as finely as needed."""
    ladders: tuple[tuple[DeviceType, Ladder], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.iterations > 0 or not isfinite(self.iterations):
            raise UsageError(f"job {self.id!r} has {self.iterations} iterations: it needs a number above 0")
        if not self.curves:
            raise UsageError(f"job {self.id!r} has no scaling curve: give one for at least one device type")
        if (self.deadline_s is None) != (self.goal is Goal.BEST_EFFORT):
            raise UsageError(
                f"job {self.id!r} has deadline {self.deadline_s} and goal {self.goal.value}: best-effort jobs have no "
                "deadline, all others need one"
            )
        if self.min_workers < 1 or (self.max_workers is not None and self.max_workers < self.min_workers):
            raise UsageError(
                f"job {self.id!r} wants {self.min_workers} to {self.max_workers} workers: the least must be at least 1 "
                "and not above the most"
            )
        if self.requested_workers < 1:
            raise UsageError(f"job {self.id!r} requests {self.requested_workers} workers: it needs at least 1")
        if self.virtual_workers is not None and self.virtual_workers < 1:
            raise UsageError(f"job {self.id!r} has {self.virtual_workers} virtual workers: it needs at least 1")
        made = tuple((kind, curve.ladder(self.min_workers, self.max_workers)) for kind, curve in self.curves)
        object.__setattr__(self, "ladders", made)

    def curve(self, kind: DeviceType) -> ScalingCurve | None:
        """The scaling curve on one type of device; None: the job cannot run there."""
        for name, curve in self.curves:
            if name == kind:
                return curve
        return None

    def ladder(self, kind: DeviceType) -> Ladder | None:
        """The levels worth giving on one type of device; None: the job cannot run there."""
        for name, ladder in self.ladders:
            if name == kind:
                return ladder if ladder.levels else None
        return None

    def rate(self, counts: Counts, *, scattered: bool = False, batch_size: int = 0) -> float:
        """Iterations a second on devices of one or several types; at another batch size, what they are worth.

        Mixed types add up: virtual workers are split by speed, so that each type does its part of every step. Where
        their number is known, only whole ones can be given to a device.
        """
        if batch_size and self.goodput is not None:
            model, curves = self.goodput, dict(self.curves)
            return sum(model.rate(curves[k], n, batch_size, scattered=scattered) for k, n in counts if k in curves)
        if self.virtual_workers and len(counts) > 1:
            return self._whole_rate(self.virtual_workers, counts, scattered)
        total = 0.0
        for kind, workers in counts:
            curve = self.curve(kind)
            total += curve.rate(workers, scattered=scattered) if curve else 0.0
        return total

    def _whole_rate(self, virtual_workers: int, counts: Counts, scattered: bool) -> float:
        groups: list[tuple[int, float]] = []
        for kind, workers in counts:
            curve = self.curve(kind)
            rate = curve.rate(workers, scattered=scattered) if curve and workers > 0 else 0.0
            # What one device does when `workers` of its type do the whole step.
            groups.append((workers, rate * -(-virtual_workers // workers) if workers > 0 else 0.0))
        seconds = step_s(tuple(groups), loads(virtual_workers, tuple(groups)))
        return 1.0 / seconds if seconds else 0.0
