"""How long a job stands still when its workers change, by model and size.

The formula is ElasticFlow's: a fixed pause, a longer one for very large groups, and the connecting of a new group,
which grows with the logarithm of its size. Charged only to a job that really changes.
"""

from dataclasses import dataclass
from math import log2

from melodeon.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The parts of one pause, in seconds."""

    base_s: float = 2.0
    large_s: float = 7.0
    """Instead of `base_s` from `large_from` workers."""
    large_from: int = 256
    connect_s: float = 2.0
    """Times `log2(workers) + 1`: building the group."""

    def __post_init__(self) -> None:
        if min(self.base_s, self.large_s, self.connect_s) < 0:
            raise UsageError(f"{self} has a negative time: a pause cannot be shorter than 0 s")

    def seconds(self, workers: int) -> float:
        """The pause before `workers` workers train on."""
        if workers < 1:
            return 0.0
        fixed = self.large_s if workers >= self.large_from else self.base_s
        return fixed + self.connect_s * (log2(workers) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Pauses for resizing, migrating and going on after a stop; models that differ are named."""

    default: Pause = Pause()
    by_model: tuple[tuple[str, Pause], ...] = ()
    first_start: bool = False
    """Whether a job's very first start costs a pause too; traces count it in the job's duration already."""

    @classmethod
    def none(cls) -> "Overheads":
        """Changes that cost nothing."""
        return cls(default=Pause(base_s=0.0, large_s=0.0, connect_s=0.0))

    def pause_s(self, model: str, workers: int, *, fresh: bool = False) -> float:
        """Seconds without progress when a job of `model` changes to `workers` workers; `fresh`: it never ran before."""
        if fresh and not self.first_start:
            return 0.0
        for name, pause in self.by_model:
            if name == model:
                return pause.seconds(workers)
        return self.default.seconds(workers)
