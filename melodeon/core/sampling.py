"""The arithmetic of an epoch: which samples each virtual worker gets at each step, and how much its batch weighs.

The order is that of PyTorch's DistributedSampler over V ranks: a permutation of the dataset, wrapped to a multiple of
V, dealt out like cards (rank r takes positions r, r + V, ...), then cut into batches. So one step of all virtual
workers is one contiguous block of the permutation, and only an epoch's last step can be short or padded. Where the job
stands is one integer, the cursor; everything else follows from it.

With a batch factor k a step is dealt to V * k ranks and takes k such blocks at once. The cursor goes on counting single
blocks, so the factor may change in the middle of an epoch: every sample still comes once.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from melodeon.core.assignment import check_virtual_workers
from melodeon.core.errors import UsageError

Uneven = Literal["exact", "pad", "drop"]
"""What happens to samples that do not divide evenly.

exact: every sample counts once an epoch; padding is taken out and short batches weigh less.
pad:   as DistributedSampler(drop_last=False): the first samples come a second time, every batch weighs 1.
drop:  samples that do not fill a batch of every virtual worker are left out of the epoch.
"""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """How `num_samples` are dealt to virtual workers in batches of `batch_size` each, epoch after epoch."""

    num_samples: int
    """Length of the dataset."""
    virtual_workers: int
    batch_size: int
    """Samples per virtual worker and step."""
    uneven: Uneven = "exact"

    def __post_init__(self) -> None:
        check_virtual_workers(self.virtual_workers)
        if not _is_count(self.batch_size):
            raise UsageError(
                f"batch_size={self.batch_size!r} must be a whole number of at least 1, the batch of one virtual worker"
            )
        if self.uneven not in get_args(Uneven):
            raise UsageError(f"uneven={self.uneven!r} is not known: choose 'exact', 'pad' or 'drop'")
        if not _is_count(self.num_samples):
            raise UsageError(
                f"the dataset has {self.num_samples!r} samples and needs at least 1: check where it reads from"
            )
        if self.steps_per_epoch == 0:
            one_step = self.virtual_workers * self.batch_size
            raise UsageError(
                f"the dataset has {self.num_samples} samples and uneven='drop' needs {one_step} for one step "
                f"(virtual_workers={self.virtual_workers} x batch_size={self.batch_size}): "
                "choose a smaller batch_size or uneven='exact'"
            )

    @property
    def samples_per_rank(self) -> int:
        """Positions dealt to each virtual worker in an epoch, padding included: DistributedSampler's `num_samples`."""
        if self.uneven == "drop":
            return self.num_samples // self.virtual_workers
        return -(-self.num_samples // self.virtual_workers)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the last and possibly short one included unless it is dropped."""
        if self.uneven == "drop":
            return self.samples_per_rank // self.batch_size
        return -(-self.samples_per_rank // self.batch_size)

    def at(self, cursor: int) -> tuple[int, int]:
        """`(epoch, step in the epoch)` of a cursor."""
        return divmod(cursor, self.steps_per_epoch)

    def cursor(self, epoch: int, step: int = 0) -> int:
        """The one integer that stands for a step of an epoch."""
        return epoch * self.steps_per_epoch + step

    def after(self, cursor: int, factor: int = 1) -> int:
        """The cursor after a step with this batch factor; a step never reaches into the next epoch."""
        epoch, step = self.at(cursor)
        return self.cursor(epoch, min(step + factor, self.steps_per_epoch))

    def positions(self, step: int, rank: int, factor: int = 1) -> range:
        """The positions of the epoch's permutation in this batch; take them modulo `num_samples`."""
        dealt = self._dealt(step, rank, factor)
        if self.uneven == "exact":
            # A batch is never empty, since the model must run: all padding stays in, with weight 0.
            return dealt[: self._num_real(dealt)] or dealt
        return dealt

    def num_counted(self, step: int, rank: int, factor: int = 1) -> int:
        """How many samples of this batch count: all, except where `exact` keeps one only to have something to run."""
        batch = self.positions(step, rank, factor)
        return self._num_real(batch) if self.uneven == "exact" else len(batch)

    def weight(self, step: int, rank: int, factor: int = 1) -> float:
        """The factor that makes the mean over virtual workers of mean losses the mean over the step's samples."""
        if self.uneven != "exact":
            return 1.0
        # num_counted * ranks / (samples of the step); exactly 1.0 where all batches are equally full
        ranks = self.virtual_workers * factor
        first = self.virtual_workers * step * self.batch_size
        in_step = min(first + ranks * self.batch_size, self.num_samples) - first
        return self.num_counted(step, rank, factor) * ranks / in_step

    def _dealt(self, step: int, rank: int, factor: int) -> range:
        ranks = self.virtual_workers * factor
        if not (0 <= step < self.steps_per_epoch and 0 <= rank < ranks):
            raise IndexError(f"step {step} of virtual rank {rank} with batch factor {factor} is outside {self}")
        first = self.virtual_workers * step * self.batch_size
        # A full batch each, or an equal share of what the epoch has left, padded where that does not divide.
        left = self.samples_per_rank * self.virtual_workers - first
        each = min(self.batch_size, -(-left // ranks))
        return range(first + rank, first + rank + ranks * each, ranks)

    def _num_real(self, batch: range) -> int:
        # Positions rise, so padding (positions past the dataset) is at the end.
        return len(range(batch.start, min(batch.stop, self.num_samples), batch.step))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
