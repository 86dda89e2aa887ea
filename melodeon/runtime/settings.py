"""What a script asks for in `melodeon.join(...)`, checked."""

from dataclasses import dataclass
from typing import Literal, get_args

from melodeon.core.assignment import check_virtual_workers
from melodeon.core.definition import Value
from melodeon.core.errors import UsageError
from melodeon.runtime.finite import NanPolicy

Order = Literal["tree", "ddp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The job's own settings; which workers run it is the launcher's business."""

    virtual_workers: int
    seed: int
    order: str
    """The order of summation: `tree` or `ddp`."""
    nan: str
    """What a loss that is not finite does: stop the job, skip the step's update, or nothing."""
    log_every: int
    """Steps between two exchanges of logged values."""
    receipt_every: int | None
    """Steps between two entries of the receipt; None: at the end of every epoch; 0: only at the end."""
    find_unused_parameters: bool
    """With order="ddp": cut buckets as DDP(find_unused_parameters=True) does."""

    def __post_init__(self) -> None:
        check_virtual_workers(self.virtual_workers)
        if not _is_whole(self.seed) or not 0 <= self.seed < 1 << 63:
            raise UsageError(f"seed={self.seed!r} must be a whole number from 0 to 2**63 - 1")
        if self.order not in get_args(Order):
            raise UsageError(
                f"order={self.order!r} is not known: use 'tree' (the default) or 'ddp' (DistributedDataParallel's own)"
            )
        if self.nan not in get_args(NanPolicy):
            raise UsageError(
                f"nan={self.nan!r} is not known: use 'raise' (stop), 'skip' (leave the update out) or 'ignore'"
            )
        if not _is_whole(self.log_every) or self.log_every < 1:
            raise UsageError(f"log_every={self.log_every!r} must be a whole number of steps of at least 1")
        if self.receipt_every is not None and (not _is_whole(self.receipt_every) or self.receipt_every < 0):
            raise UsageError(
                f"receipt_every={self.receipt_every!r} must be a whole number of steps; 0 records only the end"
            )

    def facts(self) -> dict[str, Value]:
        """Those of the settings that define the bits."""
        return {"virtual_workers": self.virtual_workers, "seed": self.seed, "order": self.order, "nan": self.nan}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
