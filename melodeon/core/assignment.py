"""Which contiguous range of virtual workers each worker runs.

An assignment never changes the result, only the time: a range that falls into few maximal aligned subtrees sends fewer
partial sums, so among equally balanced splits the one with the fewest is taken.
"""

from dataclasses import dataclass
from functools import cache

from melodeon.core.errors import UsageError
from melodeon.core.text import counted
from melodeon.core.tree import cover


@dataclass(frozen=True, slots=True)
class Assignment:
    """`counts[w]` virtual workers for worker `w`, in rank order."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts or any(count < 1 for count in self.counts):
            raise UsageError(
                f"assignment {self} gives a worker nothing to do: every worker needs at least 1 virtual worker"
            )

    def __str__(self) -> str:
        return ",".join(str(count) for count in self.counts)

    @property
    def num_workers(self) -> int:
        """How many workers share the job."""
        return len(self.counts)

    @property
    def virtual_workers(self) -> int:
        """How many virtual workers they run in all."""
        return sum(self.counts)

    def ranks_of(self, worker: int) -> range:
        """The virtual ranks that `worker` runs."""
        start = sum(self.counts[:worker])
        return range(start, start + self.counts[worker])

    def ranges(self) -> tuple[range, ...]:
        """The virtual ranks of every worker, in order."""
        return tuple(self.ranks_of(worker) for worker in range(self.num_workers))

    def worker_of(self, rank: int) -> int:
        """The worker that runs virtual rank `rank`."""
        return next(worker for worker, ranks in enumerate(self.ranges()) if rank in ranks)

    @classmethod
    def balanced(cls, virtual_workers: int, num_workers: int) -> "Assignment":
        """As even as possible; among even splits, the one that sends the fewest partial sums."""
        check_virtual_workers(virtual_workers)
        if not 1 <= num_workers <= virtual_workers:
            raise UsageError(
                f"{num_workers} workers cannot share {counted(virtual_workers, 'virtual worker')}: "
                f"choose 1 to {virtual_workers} workers, or raise virtual_workers"
            )
        return cls(_fewest_partials(virtual_workers, num_workers))

    @classmethod
    def parse(cls, text: str) -> "Assignment":
        """Read `3,1,4`."""
        try:
            counts = tuple(int(part) for part in text.split(","))
        except ValueError:
            raise UsageError(f"assignment {text!r} is not a list of whole numbers: write it like 3,1,4") from None
        return cls(counts)

    def check_total(self, virtual_workers: int) -> None:
        """Refuse an assignment of another number of virtual workers than the job has."""
        if self.virtual_workers != virtual_workers:
            raise UsageError(
                f"assignment {self} sums to {self.virtual_workers}, but the job has virtual_workers={virtual_workers}: "
                "the counts must sum to it"
            )


MOST_VIRTUAL_WORKERS = 65_536
"""A step runs the model once for each, so more than this is a slip."""


def check_virtual_workers(virtual_workers: int) -> None:
    """Refuse anything but a positive whole number that a step can go through."""
    if isinstance(virtual_workers, bool) or not isinstance(virtual_workers, int) or virtual_workers < 1:
        raise UsageError(f"virtual_workers={virtual_workers!r} must be a whole number of at least 1, such as 8")
    if virtual_workers > MOST_VIRTUAL_WORKERS:
        raise UsageError(
            f"virtual_workers={virtual_workers} is more than {MOST_VIRTUAL_WORKERS}, and a step runs the model once "
            "for each: choose as many as the job may ever have workers, such as 8"
        )


@cache
def _fewest_partials(virtual_workers: int, num_workers: int) -> tuple[int, ...]:
    small, num_large = divmod(virtual_workers, num_workers)
    # best[k]: (partials, counts) for the workers placed so far, k of which took small + 1
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for placed in range(num_workers):
        grown: dict[int, tuple[int, tuple[int, ...]]] = {}
        for large, (partials, counts) in best.items():
            start = placed * small + large
            for extra in (1, 0):
                used, end = large + extra, start + small + extra
                if used > num_large or num_large - used > num_workers - placed - 1:
                    continue
                found = (partials + len(cover(start, end, virtual_workers)), (*counts, small + extra))
                if used not in grown or found[0] < grown[used][0]:
                    grown[used] = found
        best = grown
    return best[num_large][1]
