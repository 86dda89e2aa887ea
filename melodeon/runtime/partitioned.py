"""`melodeon.data.Partitioned`: a large set kept in partitions, known by metadata until a partition is needed.

    virtual    the parts of an epoch are dealt to virtual workers: same batches, same bits, on any split
    on_demand  whole partitions are handed to workers as they use them up: each sample once an epoch, in a sequence
               that depends on the workers

It goes where a dataset goes: `job.loader(Partitioned(...), batch_size=32, shuffle=True)`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from torch.utils.data import Dataset

from melodeon.core.errors import UsageError
from melodeon.core.partitions import Catalogue, OpenPlan
from melodeon.core.sampling import EpochPlan, Uneven
from melodeon.runtime import partitioned_files as files
from melodeon.runtime.partitioned_book import Book
from melodeon.runtime.partitioned_demand import DemandFeed, Grants
from melodeon.runtime.partitioned_read import Open, ReadAhead
from melodeon.runtime.partitioned_virtual import VirtualFeed

Mode = Literal["virtual", "on_demand"]

BLOCK = 1024


class Partitioned(Dataset[Any]):
    """Partitions by name and number of samples, and how to open one.

    `open(name)` gives the samples of a partition: something with `__len__` and `__getitem__`, or an iterable. It is
    called in a thread, ahead of time, and must draw no random numbers; draw them in `collate_fn`. `block` samples at
    most are read, kept in memory and shuffled together.
    """

    def __init__(
        self,
        partitions: Mapping[str, int] | Iterable[tuple[str, int]],
        open: Open,  # noqa: A002 - the word for it
        *,
        mode: Mode = "virtual",
        block: int = BLOCK,
    ) -> None:
        if mode not in get_args(Mode):
            raise UsageError(f"mode={mode!r} is not known: choose 'virtual' or 'on_demand'")
        if isinstance(block, bool) or not isinstance(block, int) or block < 1:
            raise UsageError(f"block={block!r} must be a whole number of at least 1, the samples read in one go")
        if not callable(open):
            raise UsageError(f"open={open!r} cannot be called: give a function from a partition's name to its samples")
        self.catalogue = Catalogue.of(_pairs(partitions))
        self.mode = mode
        self.block = block
        self._open = open
        self._num_samples = self.catalogue.num_samples

    @classmethod
    def lines(
        cls,
        folder: str | Path,
        pattern: str = "*",
        *,
        parse: Callable[[str], Any] = str,
        counts: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Self:
        """The files of a folder, one record per line; `parse` makes a sample of a line.

        Lines are counted unless `counts` gives them, by the files' paths in the folder.
        """
        if not callable(parse):
            raise UsageError(f"parse={parse!r} cannot be called: give a function from a line to a sample")
        found = files.list_files(folder, pattern)
        return cls(
            files.listed(found, counts, files.count_lines), lambda name: files.read_lines(found[name], parse), **options
        )

    @classmethod
    def npy(
        cls,
        folder: str | Path,
        pattern: str = "*.npy",
        *,
        counts: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Self:
        """The .npy files of a folder; a sample is a row of the first dimension."""
        found = files.list_files(folder, pattern)
        return cls(files.listed(found, counts, files.count_rows), lambda name: files.NpyShard(found[name]), **options)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        raise UsageError(
            f"sample {index} of a Partitioned set was asked for by number: its samples come in partitions, through "
            "job.loader(...)"
        )

    def describe(self) -> str:
        """What of it defines the bits."""
        number = len(self.catalogue.partitions)
        return f"{number} partitions ({self.catalogue.digest()}), {self.mode}, blocks of {self.block}"

    def plan(self, virtual_workers: int, batch_size: int, uneven: Uneven) -> EpochPlan:
        """How an epoch's samples become batches."""
        if self.mode == "virtual":
            return EpochPlan(len(self), virtual_workers, batch_size, uneven)
        if uneven != "exact":
            raise UsageError(
                f"uneven={uneven!r} does not go with mode='on_demand', where every sample comes exactly once: choose "
                "uneven='exact'"
            )
        return OpenPlan(len(self), virtual_workers, batch_size, uneven)

    def book(self, *, seed: int, shuffle: bool) -> Book | None:
        """The book that partitions are handed out by, in the mode that needs one."""
        return Book(self.catalogue, seed=seed, shuffle=shuffle) if self.mode == "on_demand" else None

    def feed(self, *, plan: EpochPlan, num_workers: int = 0, grants: Grants | None = None, **options: Any) -> Any:
        """Where a loader's batches come from; `grants` is where partitions are had, in the mode that needs it."""
        if num_workers:
            raise UsageError(
                f"num_workers={num_workers} does not go with a Partitioned set, which is read ahead by a thread of the "
                "worker: leave it out"
            )
        if self.mode == "virtual":
            return VirtualFeed(self, plan=plan, **options)
        if grants is None or not isinstance(plan, OpenPlan):
            raise UsageError(
                "mode='on_demand' needs somebody who hands out partitions, and stock PyTorch has nobody: choose "
                "mode='virtual'"
            )
        return DemandFeed(self, plan=plan, grants=grants, **options)

    def read_ahead(self) -> ReadAhead:
        """A reader with a thread of its own."""
        return ReadAhead(self._open, {part.name: part.num_samples for part in self.catalogue.partitions})


def _pairs(partitions: object) -> list[tuple[str, int]]:
    given = partitions.items() if isinstance(partitions, Mapping) else partitions
    if not isinstance(given, Iterable):
        raise UsageError(f"partitions={given!r} lists nothing: give pairs of name and number of samples, or a mapping")
    pairs = list(given)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"{pair!r} in partitions is no pair of name and number of samples, like ('a', 100)")
    return pairs
