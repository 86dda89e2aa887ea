"""How long a job stands still when its workers change, by model and size.

The formula is ElasticFlow's: a fixed pause, a longer one for very large groups, and the connecting of a new group,
which grows with the logarithm of its size. Charged only to a job that really changes. Where processes have to begin
before a job trains, and to end after it has, a start and an end have times of their own.
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
    """What changes cost: resizing, migrating, starting, ending; models that differ are named."""

    default: Pause = Pause()
    by_model: tuple[tuple[str, Pause], ...] = ()
    first_start: bool = False
    """Whether a job's very first start costs a pause too; traces count it in the job's duration already."""
    start: Pause | None = None
    """Of a job that holds no devices, until it trains: its processes begin; None: as of any change."""
    grow_s: float = 0.0
    """A job that is given more workers trains on without them for so long, while they get ready."""
    shrink_s: float = 0.0
    """Devices that a job shall leave while it goes on elsewhere are free after so long."""
    end_s: float = 0.0
    """From a job's last step until its devices are free, at its end and when it is stopped on the way."""

    def __post_init__(self) -> None:
        if min(self.grow_s, self.shrink_s, self.end_s) < 0:
            raise UsageError(f"{self} has a negative time: nothing takes less than 0 s")

    @classmethod
    def none(cls) -> "Overheads":
        """Changes that cost nothing."""
        return cls(default=Pause(base_s=0.0, large_s=0.0, connect_s=0.0))

    def pause_s(self, model: str, workers: int, *, fresh: bool = False, held: bool = True) -> float:
        """Seconds without progress when a job of `model` changes to `workers` workers.

        `fresh`: it never ran before; not `held`: it has no devices that it could train on until then.
        """
        if fresh and not self.first_start:
            return 0.0
        if self.start is not None and not held:
            return self.start.seconds(workers)
        for name, pause in self.by_model:
            if name == model:
                return pause.seconds(workers)
        return self.default.seconds(workers)
