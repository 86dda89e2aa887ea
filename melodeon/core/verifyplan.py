"""Which runs prove that a script's bits do not depend on its workers, decided before any of them starts.

Every worker count is run at its best split and at one that is hard for the order of summation; splits that a person
names come on top, and stock DistributedDataParallel last, on one process per virtual worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.core.launch import Engine
from melodeon.core.tree import cover

DEFAULT_COUNTS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the comparison."""

    assignment: Assignment
    engine: Engine = "melodeon"

    @property
    def is_stock(self) -> bool:
        """Whether it is the run on stock DistributedDataParallel."""
        return self.engine == "stock-ddp"

    @property
    def label(self) -> str:
        """How sentences speak of it."""
        return "stock DDP" if self.is_stock else f"assignment {self.assignment}"

    @property
    def slug(self) -> str:
        """How its folder's name ends."""
        return "ddp" if self.is_stock else "-".join(str(count) for count in self.assignment.counts)


def plan_runs(
    virtual_workers: int, counts: Sequence[int] | None, extra: Sequence[Assignment] = (), *, against_ddp: bool = False
) -> tuple[PlannedRun, ...]:
    """The runs to compare, each split once; `counts` None stands for those of 1, 2 and 3 that there can be."""
    if counts is None:
        counts = [count for count in DEFAULT_COUNTS if count <= virtual_workers]
    splits: list[Assignment] = []
    for count in counts:
        splits.append(Assignment.balanced(virtual_workers, count))
        if (hard := hard_split(virtual_workers, count)) is not None:
            splits.append(hard)
    for assignment in extra:
        assignment.check_total(virtual_workers)
    runs = [PlannedRun(assignment) for assignment in dict.fromkeys([*splits, *extra])]
    if against_ddp:
        runs.append(PlannedRun(Assignment((1,) * virtual_workers), "stock-ddp"))
    if len(runs) < 2:
        raise UsageError(
            f"{len(runs)} run with virtual_workers={virtual_workers} leaves nothing to compare: "
            "name another worker count, such as --workers 1,2, or add --against ddp"
        )
    return tuple(runs)


def hard_split(virtual_workers: int, num_workers: int) -> Assignment | None:
    """The balanced split with one virtual worker moved so that the most partial sums are sent, or None."""
    balanced = Assignment.balanced(virtual_workers, num_workers).counts
    moved = {
        tuple(count + (index == to) - (index == source) for index, count in enumerate(balanced))
        for source in range(num_workers)
        for to in range(num_workers)
        if source != to and balanced[source] > 1
    }
    splits = [Assignment(counts) for counts in sorted(moved - {balanced}, reverse=True)]
    return max(splits, key=num_partials, default=None)


def num_partials(assignment: Assignment) -> int:
    """How many maximal aligned subtrees the workers' ranges fall into."""
    total = assignment.virtual_workers
    return sum(len(cover(ranks.start, ranks.stop, total)) for ranks in assignment.ranges())


def parse_counts(text: str) -> tuple[int, ...]:
    """Read `1,2,3`: worker counts, each once."""
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--workers {text!r} is not a list of whole numbers: write it like 1,2,3") from None
    if wrong := [count for count in counts if count < 1]:
        raise UsageError(f"--workers {text!r} has {wrong[0]}: every worker count must be at least 1")
    return counts
