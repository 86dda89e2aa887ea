"""`job.loader(...)`: one virtual worker's batch at a time, and with it the beat of the whole job.

Asking for the next batch ends the virtual worker before it; asking for the first of the next step ends the step.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Batch

if TYPE_CHECKING:
    from melodeon.runtime.job import Job


class Source(Protocol):
    """Where batches come from."""

    stop: int | None

    def start(self, ranks: range, cursor: int) -> None:
        """Begin to load for these ranks from this cursor on."""

    def take(self, cursor: int, rank: int) -> Batch:
        """One virtual worker's batch."""

    def reassign(self, ranks: range, cursor: int) -> None:
        """Load for other ranks, from this cursor on."""

    def close(self) -> None:
        """End the loader processes."""


class Loader:
    """Iterates this worker's share of the dataset inside `job.epochs(...)`."""

    def __init__(self, job: "Job", plan: EpochPlan, source: Source, number: int) -> None:
        self._job = job
        self.plan = plan
        self.source = source
        self.number = number
        self.cursor = 0
        """Steps handed out and finished since the beginning of the run, over all epochs: the position in the data."""
        self._started = False

    def __len__(self) -> int:
        """Steps in an epoch, on any number of workers: what a schedule of learning rates needs."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Go through this worker's virtual workers in turn, step after step, to the end of the epoch."""
        job = self._job
        end = self.plan.cursor(job.begin_pass(self) + 1)
        finished = False
        try:
            while True:
                job.keep_up()
                if self.cursor >= end or job.stopping:
                    break
                whole = True
                for rank in job.ranks:
                    batch = self._take(rank)
                    job.beat.enter(rank, batch.weight)
                    yield move(batch.data, job.device)
                    whole = job.beat.leave()
                if whole:
                    job.boundary(self)
                else:
                    job.drop(self)
            finished = True
            job.end_pass()
        finally:
            if not finished:
                job.leave_early(self)

    def enter_epoch(self, epoch: int) -> None:
        """Go to the start of the epoch, unless its middle or end was reached before."""
        self.cursor = max(self.cursor, self.plan.cursor(epoch))
        if self.cursor > self.plan.cursor(epoch + 1):
            raise UsageError(
                f"this loader stands at step {self.cursor}, past the end of epoch {epoch}: an epoch gives every "
                "sample once"
            )

    def reassign(self) -> None:
        """The worker's virtual workers, or its place in the data, are others from here on."""
        if self._started:
            self.source.reassign(self._job.ranks, self.cursor)

    def close(self) -> None:
        """End the loader processes."""
        self.source.close()

    def _take(self, rank: int) -> Batch:
        if not self._started:
            self.source.start(self._job.ranks, self.cursor)
            self._started = True
        return self.source.take(self.cursor, rank)


def move(data: Any, device: torch.device) -> Any:
    """The batch on the worker's device; on a CPU, as it is."""
    if device.type == "cpu":
        return data
    return _walk(data, lambda tensor: tensor.to(device, non_blocking=True))


def _walk(data: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(data, torch.Tensor):
        return change(data)
    if isinstance(data, Mapping):
        return {key: _walk(value, change) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_walk(value, change) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(_walk(value, change) for value in data)
    return data
