"""Datasets for tests of the feed, and a feed that is started and closed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Feed


class Noisy(Dataset):
    """Draws from all three generators for each sample."""

    def __init__(self, length: int = 22) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(3), np.random.rand(2), random.random()


class Numbers(Dataset):
    """Sample i is i; writes a line for each one it loads, for tests of what was loaded."""

    def __init__(self, length: int, log: Path | None = None) -> None:
        self.length, self.log = length, log

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        return index


@contextmanager
def started(dataset, plan: EpochPlan, ranks: range | None = None, cursor: int = 0, **options) -> Iterator[Feed]:
    stop = options.pop("stop", None)
    with Feed(dataset, plan=plan, seed=3, shuffle=options.pop("shuffle", True), **options) as feed:
        feed.stop = stop
        feed.start(ranks or range(plan.virtual_workers), cursor)
        yield feed
