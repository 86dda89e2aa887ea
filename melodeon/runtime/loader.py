"""`job.loader(...)`: one virtual worker's batch at a time, and with it the beat of the whole job.

Asking for the next batch ends the virtual worker before it; asking for the first of the next step ends the step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Batch
from melodeon.runtime.group import Group
from melodeon.runtime.partitioned_book import Book, decode_used, encode_used
from melodeon.runtime.partitioned_demand import DemandFeed

if TYPE_CHECKING:
    from melodeon.runtime.course import Course


class Source(Protocol):
    """Where batches come from."""

    stop: int | None

    def start(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Begin to load for these ranks from this cursor on, for steps of this batch factor."""

    def take(self, cursor: int, rank: int) -> Batch:
        """One virtual worker's batch."""

    def reassign(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Load for other ranks or steps of another batch factor, from this cursor on."""

    def close(self) -> None:
        """End the loader processes."""


class Loader:
    """Iterates this worker's share of the dataset inside `job.epochs(...)`."""

    def __init__(
        self, course: "Course", plan: EpochPlan, source: Source, number: int, book: Book | None = None
    ) -> None:
        self._course = course
        self.book = book
        """With partitions on demand: who holds which."""
        self.plan = plan
        self.source = source
        self.number = number
        self.cursor = 0
        """The position in the data: steps of batch factor 1 handed out and finished since the beginning of the run,
        over all epochs.
        """
        self._started = False

    def __len__(self) -> int:
        """Steps in an epoch, on any number of workers: what a schedule of learning rates needs. With a batch factor
        above 1 an epoch has fewer.
        """
        return self.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Go through this worker's virtual workers in turn, step after step, to the end of the epoch."""
        course = self._course
        end = self.plan.cursor(course.begin_pass(self) + 1)
        finished = False
        try:
            while True:
                course.keep_up()
                if self.cursor >= end or course.stopping:
                    break
                whole = True
                course.beat.begin()
                for rank in course.ranks:
                    batch = self._take(rank)
                    course.beat.enter(rank, batch.weight)
                    yield move(batch.data, course.engine.device)
                    whole = course.beat.leave()
                if whole:
                    course.boundary(self)
                else:
                    course.drop()
            finished = True
            course.end_pass()
        finally:
            if not finished:
                course.leave_early(self)

    def enter_epoch(self, epoch: int) -> None:
        """Go to the start of the epoch, unless its middle or end was reached before."""
        self.cursor = max(self.cursor, self.plan.cursor(epoch))
        if self.cursor > self.plan.cursor(epoch + 1):
            raise UsageError(
                f"this loader stands at step {self.cursor}, past the end of epoch {epoch}: an epoch gives every "
                "sample once"
            )
        if self.book is not None:
            self.reassign()  # what was drawn for a step that a `break` left is drawn again

    def reassign(self) -> None:
        """The worker's virtual workers, or its place in the data, are others from here on."""
        if self._started:
            self.source.reassign(self._course.ranks, self.cursor, self._course.batches.running)

    def advance(self) -> None:
        """A step is complete: go on behind its samples."""
        if isinstance(self.source, DemandFeed):
            self.cursor = self.source.after(self.cursor)
        else:
            self.cursor = self.plan.after(self.cursor, self._course.batches.running)

    def seat(self, worker: int, counts: Mapping[int, int]) -> None:
        """Enter a view of workers that run so many virtual workers each."""
        if self.book is not None and isinstance(self.source, DemandFeed):
            self.book.seat(worker, {number: self.source.num_wanted(count) for number, count in counts.items()})

    def capture(self) -> dict[str, Any] | None:
        """What of the data's state the cursor does not say."""
        if self.book is None or not isinstance(self.source, DemandFeed):
            return None
        return self.book.capture(self.source)

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Go on from what `capture` gave."""
        assert self.book is not None
        assert isinstance(self.source, DemandFeed)
        self.book.restore(self.source, captured)

    def gather_used(self, group: Group) -> Callable[[], None] | None:
        """Before a commit, learn what all workers' part of the step uses; what is returned is called at the commit."""
        source = self.source
        if not isinstance(source, DemandFeed):
            return None
        everyone = [decode_used(body) for body in group.gather_in_turn(encode_used(source.pending()))]
        return lambda: source.commit(everyone)

    def close(self) -> None:
        """End the loader processes."""
        self.source.close()

    def _take(self, rank: int) -> Batch:
        if not self._started:
            self.source.start(self._course.ranks, self.cursor, self._course.batches.running)
            self._started = True
        return self.source.take(self.cursor, rank)


def capture_demand(loaders: Iterable[Loader]) -> dict[str, Any]:
    """What of the loaders' places in the data their cursors do not say, as a part of the job's state."""
    found = {str(loader.number): loader.capture() for loader in loaders}
    taken = {number: captured for number, captured in found.items() if captured is not None}
    return {"demand": taken} if taken else {}


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
