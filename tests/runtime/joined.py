"""A good script in this process, for a test to put one mistake into."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import melodeon
from tests.runtime.loop import parts

Join = Callable[..., melodeon.Job]


class Script:
    """A good script, to be run with one mistake in `body`, which gets each batch."""

    def __init__(self, job: melodeon.Job, model: nn.Module | None = None, samples: int = 16) -> None:
        self.job = job
        self.model = model if model is not None else nn.Linear(parts.FEATURES, parts.CLASSES)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model, self.optimizer = job.wrap(self.model, self.optimizer)
        self.loader = job.loader(parts.data(samples), batch_size=2)

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return cross_entropy(self.model(x), y)

    def train(self, body: "Callable[[Script, Any], None]", epochs: int = 1) -> None:
        for _ in self.job.epochs(epochs):
            for batch in self.loader:
                body(self, batch)

    def good(self, batch: Any) -> None:
        self.job.backward(self.loss(batch))
        self.optimizer.step()
        self.optimizer.zero_grad()
