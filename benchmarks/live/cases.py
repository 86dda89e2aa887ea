"""The models that live benchmarks train, and the log of commits that they are judged by.

Every process that trains appends a line `STEP NANOSECONDS` to a file of its own as soon as a step is committed, by the
clock that all processes of a machine share. What happened between two steps is read from these files alone, the same
way for every contender.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn
from torch.utils.data import TensorDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A perceptron and what it eats."""

    name: str
    sizes: tuple[int, ...]
    """Width of the input, of every hidden layer, and of the output."""
    batch: int
    """Samples of one step, over all workers."""
    checkpoint_every: int
    """Steps between two checkpoints, for contenders that need them."""
    fused: bool | None = None
    """Whether AdamW is the fused one; None: as torch chooses, which on a CPU is not."""

    def make(self, device: torch.device | str = "cpu") -> nn.Module:
        """The model, made where it trains."""
        layers: list[nn.Module] = []
        for inside, out in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            layers += [nn.Linear(inside, out, device=device), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def data(self, steps: int = 50) -> TensorDataset:
        """Random samples, the same every time, for so many steps an epoch."""
        generator = torch.Generator().manual_seed(0)
        count = steps * self.batch
        inputs = torch.randn(count, self.sizes[0], generator=generator)
        return TensorDataset(inputs, torch.randint(0, self.sizes[-1], (count,), generator=generator))

    @property
    def state_bytes(self) -> int:
        """Parameters and AdamW's two moments."""
        pairs = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return 3 * 4 * sum(inside * out + out for inside, out in pairs)


CASES = {
    "tiny": Case(name="tiny", sizes=(16, 16, 10), batch=8, checkpoint_every=50),
    "mlp": Case(name="mlp", sizes=(784, 256, 256, 10), batch=64, checkpoint_every=50),
    "100m": Case(name="100m", sizes=(1024, *[4096] * 6, 3000), batch=4, checkpoint_every=5, fused=True),
}
"""A step is in every pause that is measured, so the large one's are kept short: no more samples than four workers need,
and the fused optimizer, since the other takes eleven times as long on a CPU, half a second.
"""


class CommitLog:
    """Appends one process's commits."""

    def __init__(self, folder: str, name: str) -> None:
        self._fd = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def add(self, step: int) -> None:
        """A step was committed just now; written at once, since the process may be killed at any time.

        What a GPU still has to do for it is waited for.
        """
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        os.write(self._fd, b"%d %d\n" % (step, time.monotonic_ns()))
