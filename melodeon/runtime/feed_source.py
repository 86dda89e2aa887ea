"""What a loader process does with one key: seed, fetch, collate.

Every batch is made in its own random stream, named by (seed, epoch, step, virtual rank). So augmentation gives the same
bits whichever process makes the batch, and whatever it made before.
"""

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from melodeon.core.streams import derive
from melodeon.runtime.random_streams import read_generators, seed_all, write_generators

Collate = Callable[[list[Any]], Any]

CPU = torch.device("cpu")


class Key(NamedTuple):
    """One virtual worker's batch of one step, as asked of a loader process."""

    cursor: int
    epoch: int
    step_in_epoch: int
    virtual_rank: int
    indices: list[int]
    factor: int = 1
    """The batch factor of the step; with another one the same place in the data gives another batch."""


class Loaded(NamedTuple):
    """The answer. It names what it is for, so that nothing hangs on the order of answers."""

    cursor: int
    virtual_rank: int
    data: Any
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Source(Dataset[Loaded | None]):
    """The user's dataset, read a whole batch at a time; key None is an idle slot and gives None."""

    dataset: Dataset[Any]
    collate_fn: Collate | None
    seed: int
    keep_generators: bool = True
    """Whether a batch loaded in the worker's own process leaves its generators as they were."""

    def __getitem__(self, key: Key | None) -> Loaded | None:
        if key is None:
            return None
        if get_worker_info() is not None:  # a loader process: nothing else draws there
            return self._load(key)
        with _one_thread():  # as a loader process has
            if not self.keep_generators:
                return self._load(key)
            state = read_generators(CPU)
            try:
                return self._load(key)
            finally:
                write_generators(state, CPU)

    def _load(self, key: Key) -> Loaded:
        seed_all(derive(self.seed, "data", key.epoch, key.step_in_epoch, key.virtual_rank), CPU)
        fetch_many = getattr(self.dataset, "__getitems__", None)
        samples = fetch_many(key.indices) if fetch_many else [self.dataset[index] for index in key.indices]
        return Loaded(key.cursor, key.virtual_rank, (self.collate_fn or default_collate)(samples), key.factor)


@dataclass(slots=True)
class ProcessInit:
    """Runs once in each new loader process, before the user's own `worker_init_fn`."""

    user_init: Callable[[int], None] | None
    dies_with_parent: bool = True

    def __call__(self, loader_process: int) -> None:
        """Prepare the process."""
        if self.dies_with_parent:
            _die_with_parent()
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Source):
            # Users reach their dataset through get_worker_info(), so it must be theirs; the class is read-only to most.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.user_init is not None:
            self.user_init(loader_process)


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _die_with_parent() -> None:
    # A forked loader process holds copies of its parent's sockets. If it outlived a killed worker, the worker's peers
    # would wait on connections that still look open. Linux can end it at once; elsewhere PyTorch looks every 5 s.
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
