"""One pool of loader processes per worker, shared by all its virtual workers.

The pool is a stock DataLoader over an endless, live sampler: whenever a place in the pool comes free, the sampler looks
at what will be taken next and hands out the first batch of it that is not in hand yet. A change of assignment changes
only that outlook: what was loaded and is still ours stays, the rest is dropped, and no process restarts. A batch is
named by (cursor, virtual rank) and made in a random stream of that name, so neither pool nor split shows in the bits.

Traded away: loader processes live through all epochs with the dataset as it was when they started, so changes made to
the dataset object later do not reach them; and a batch being loaded for nobody is finished, not cancelled.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from melodeon.core.errors import UsageError, WorkerLost
from melodeon.core.sampling import EpochPlan
from melodeon.core.streams import derive
from melodeon.runtime.feed_source import Collate, Key, Loaded, ProcessInit, Source

OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)
"""Those of DataLoader's options that a feed takes."""

PREFETCHED = 2
"""Batches loaded ahead by each loader process where nobody says; DataLoader's own number."""

Slot = tuple[int, int]
"""(cursor, virtual rank): what a batch is for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One virtual worker's batch of one step."""

    data: Any
    """What the collate function returned."""
    weight: float
    """The factor for its mean loss."""
    cursor: int
    rank: int
    num_samples: int
    """How many samples of it count; 0 for one that is there only to have something to run."""


class Feed:
    """Batches of one worker's virtual workers, in the order in which it runs them.

    The options are DataLoader's own, with their meaning there; hence so many. `keep_generators=False` is for a caller
    who seeds the process's generators after every `take` anyway: it saves 0.1 ms a batch with num_workers=0.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        plan: EpochPlan,
        seed: int,
        shuffle: bool,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        keep_generators: bool = True,
    ) -> None:
        prefetch_factor = PREFETCHED if prefetch_factor is None else prefetch_factor
        _check_options(num_workers, prefetch_factor, timeout)
        self.plan = plan
        self.stop: int | None = None
        """The cursor at which the job ends: nothing from there on is loaded ahead."""
        self._dataset, self._seed, self._shuffle = dataset, seed, shuffle
        self._depth = prefetch_factor * num_workers
        self._ranks = range(0)
        self._factor = 1  # the batch factor of the steps to come
        self._head: Slot = (0, 0)  # what is taken next
        self._loading: set[Slot] = set()  # asked of the pool
        self._loaded: dict[Slot, Any] = {}  # out of the pool, not taken yet
        self._permutations: dict[int, torch.Tensor] = {}
        self._checked_epoch: int | None = None
        self._pool: Iterator[Loaded | None] | None = None
        self._init = ProcessInit(worker_init_fn)
        self._check_length()
        options: dict[str, Any] = {"pin_memory": pin_memory}
        if num_workers:  # DataLoader refuses these without processes
            options |= {"prefetch_factor": prefetch_factor, "timeout": timeout}
            options["multiprocessing_context"] = multiprocessing_context
        source = Source(dataset, collate_fn, seed, keep_generators)
        self._loader = self._make_loader(source, num_workers, options)
        self._inline = source if num_workers == 0 and not pin_memory else None
        """Without processes and pinning DataLoader only calls the source; calling it here saves its 0.1 ms a batch."""

    def _make_loader(self, source: Source, num_workers: int, options: dict[str, Any]) -> DataLoader[Loaded | None]:
        try:
            return DataLoader(
                source,
                batch_size=None,
                sampler=_LiveSampler(self._request),
                num_workers=num_workers,
                collate_fn=_as_is,
                worker_init_fn=self._init,
                # Its own, or starting the pool would draw from the user's random numbers.
                generator=torch.Generator().manual_seed(derive(self._seed, "loader")),
                **options,
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"PyTorch's DataLoader refuses the loader's options: {error}") from error

    def start(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Start the loader processes and load ahead for `ranks` from `cursor` on."""
        assert self._pool is None, "the feed is started once"
        self._factor = factor
        self._look(ranks, (cursor, ranks.start))
        # Linux ends a child with the *thread* that made it, so only a pool of the main thread may be tied to it.
        self._init.dies_with_parent = threading.current_thread() is threading.main_thread()
        with _lost_processes():
            self._pool = (
                map(self._inline.__getitem__, _LiveSampler(self._request)) if self._inline else iter(self._loader)
            )

    def take(self, cursor: int, rank: int) -> Batch:
        """The batch of `rank` at `cursor`; called in order, ranks within cursors. A jump only changes the outlook."""
        assert self._pool is not None, "take from a feed that is started and not closed"
        assert rank in self._ranks, f"virtual rank {rank} is not among {self._ranks}"
        epoch, step = self.plan.at(cursor)
        if epoch != self._checked_epoch:
            self._check_length()
            self._checked_epoch = epoch
        slot = (cursor, rank)
        if slot != self._head:
            self._look(self._ranks, slot)
        with _lost_processes():
            while slot not in self._loaded:
                self._pull(self._pool)
        data = self._loaded.pop(slot)
        self._head = self._after(slot)
        counted = self.plan.num_counted(step, rank, self._factor)
        return Batch(data, self.plan.weight(step, rank, self._factor), cursor, rank, counted)

    def reassign(self, ranks: range, cursor: int, factor: int = 1) -> None:
        """Serve `ranks` from `cursor` on, keeping what is loaded or loading and still ours."""
        if factor != self._factor:
            self._factor = factor
            self._loading.clear()  # what still comes is of the old factor, and says so
            self._loaded.clear()
        self._look(ranks, (cursor, ranks.start))

    def close(self) -> None:
        """End the loader processes; a second call does nothing."""
        pool, self._pool = self._pool, None
        self._loading.clear()
        self._loaded.clear()
        # Dropping the iterator would do it too, unless somebody's traceback still holds it.
        shutdown = getattr(pool, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, ranks: range, head: Slot) -> None:
        most = self.plan.virtual_workers * self._factor
        assert 0 <= ranks.start < ranks.stop <= most, f"{ranks} is not a range of virtual ranks"
        self._ranks, self._head = ranks, head
        self._loading = {slot for slot in self._loading if self._is_ahead(slot)}
        self._loaded = {slot: data for slot, data in self._loaded.items() if self._is_ahead(slot)}

    def _is_ahead(self, slot: Slot) -> bool:
        return slot >= self._head and slot[1] in self._ranks

    def _after(self, slot: Slot) -> Slot:
        cursor, rank = slot
        if rank + 1 in self._ranks:
            return cursor, rank + 1
        return self.plan.after(cursor, self._factor), self._ranks.start

    def _outlook(self) -> Iterator[Slot]:
        slot = self._head
        while True:
            yield slot
            slot = self._after(slot)

    def _pull(self, pool: Iterator[Loaded | None]) -> None:
        """Take one answer out of the pool, which asks `_request` for the next one meanwhile."""
        try:
            answer = next(pool)
        except BaseException:
            # Which batch failed is not known. Forgetting all that are under way lets a caller who goes on ask again;
            # those that still come are as good, for a batch depends on its name alone.
            self._loading.clear()
            raise
        if answer is None or answer.factor != self._factor:
            return
        slot = (answer.cursor, answer.virtual_rank)
        if slot in self._loading:
            self._loading.remove(slot)
            self._loaded[slot] = answer.data

    def _request(self) -> Key | None:
        """What to load next: the first batch not in hand among the one taken next and `_depth` more, or else None.

        None goes through the pool like a batch. The pool asks only when it has given something back, so without it a
        place that found nothing to do would stay empty for good.
        """
        in_hand = self._loading | self._loaded.keys()
        for distance, slot in enumerate(islice(self._outlook(), self._depth + 1)):
            if distance > 0 and self.stop is not None and slot[0] >= self.stop:
                break
            if slot not in in_hand:
                key = self._key(slot)
                self._loading.add(slot)
                return key
        return None

    def _key(self, slot: Slot) -> Key:
        cursor, rank = slot
        epoch, step = self.plan.at(cursor)
        batch = self.plan.positions(step, rank, self._factor)
        order = self._permutation(epoch)
        indices: list[int] = order[batch.start : batch.stop : batch.step].tolist()  # ends where the dataset ends
        indices += [int(order[position % len(order)]) for position in batch[len(indices) :]]
        return Key(cursor, epoch, step, rank, indices, self._factor)

    def _permutation(self, epoch: int) -> torch.Tensor:
        """DistributedSampler's, kept for the epochs between the one taken from and the one loaded for."""
        if epoch not in self._permutations:
            oldest, _ = self.plan.at(self._head[0])
            self._permutations = {e: kept for e, kept in self._permutations.items() if e >= oldest}
            if self._shuffle:
                generator = torch.Generator().manual_seed(self._seed + epoch)
                self._permutations[epoch] = torch.randperm(self.plan.num_samples, generator=generator)
            else:
                self._permutations[epoch] = torch.arange(self.plan.num_samples)
        return self._permutations[epoch]

    def _check_length(self) -> None:
        length = dataset_length(self._dataset)
        if length != self.plan.num_samples:
            raise UsageError(
                f"the dataset has {length} samples and had {self.plan.num_samples} when the loader was made: "
                "a dataset must keep its length during a run, so build it in full before job.loader(...)"
            )


def dataset_length(dataset: object) -> int:
    """The length of a dataset that can be indexed, or a sentence on why it cannot be used."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{kind} is an IterableDataset, whose samples have no numbers to share out by: "
            "use a dataset with __len__ and __getitem__"
        )
    if not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{kind} has no __getitem__, so its samples cannot be asked for: give it __getitem__(index)")
    try:
        return len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError) as error:
        raise UsageError(f"{kind} has no length: give it a __len__ that counts its samples") from error


def lost_loader_process(error: BaseException) -> WorkerLost | None:
    """A sentence for PyTorch's report that a loader process died, or None where `error` is something else.

    PyTorch raises it from a signal handler, so it can surface anywhere in the user's loop and not only in `take`. A
    batch that the process had made before it died cannot be fetched from it any more, which may be noticed first.
    """
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid"):
        report = str(error).split(". ")[0].rstrip(". ")
    elif isinstance(error, OSError | EOFError) and _in_fetching(error):
        report = f"{type(error).__name__} when its batch was fetched"
    else:
        return None
    return WorkerLost(
        f"a loader process is gone ({report}), most often for lack of memory: "
        "lower num_workers, prefetch_factor or batch_size, or set num_workers=0 to see what the dataset does"
    )


def _in_fetching(error: BaseException) -> bool:
    """Whether it was raised where PyTorch takes a tensor over from another process, and not by the dataset."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.reductions":
            return True
        trace = trace.tb_next
    return False


@contextmanager
def _lost_processes() -> Iterator[None]:
    """Turn the pool's own failures into our errors; the user's pass through with their traceback."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        if lost := lost_loader_process(error):
            raise lost from error
        if str(error).startswith("DataLoader timed out"):
            raise WorkerLost(
                f"no loader process answered ({error}): raise timeout, or set 0 to wait for ever"
            ) from error
        raise


class _LiveSampler:
    """An endless sampler that asks anew each time. Not a generator: an error would end one for good."""

    def __init__(self, request: Callable[[], Key | None]) -> None:
        self._request = request

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Key | None:
        return self._request()


def _as_is(answer: Any) -> Any:
    return answer


def check_names(given: Iterable[str], taken: Sequence[str]) -> None:
    """Refuse options of a loader that are not among those `taken`."""
    for name in given:
        if name not in taken:
            raise UsageError(
                f"job.loader does not take {name}=: besides batch_size, shuffle, drop_last and uneven it takes "
                f"{', '.join(taken)}"
            )


def _check_options(num_workers: int, prefetch_factor: int, timeout: float) -> None:
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError(f"num_workers={num_workers!r} must be a whole number, 0 to load in the worker's own process")
    if isinstance(prefetch_factor, bool) or not isinstance(prefetch_factor, int) or prefetch_factor < 1:
        raise UsageError(f"prefetch_factor={prefetch_factor!r} must be a whole number of at least 1, such as 2")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise UsageError(f"timeout={timeout!r} must be a number of seconds, 0 to wait for ever")
