"""Scripts with state beside the weights: registered objects, buffers, random numbers drawn in odd places."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import melodeon
from tests.runtime.loop import parts
from tests.runtime.loop.cases import V
from tests.runtime.loop.crew import tell


def keepsakes(order: str) -> None:
    """An averaged model and a counter, registered; an evaluation between epochs that draws and runs the model."""
    job = melodeon.join(virtual_workers=V, seed=6, order=order)
    model = parts.cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    average = job.register("ema", AveragedModel(model, avg_fn=lambda a, b, _: 0.9 * a + 0.1 * b, use_buffers=True))
    counter = job.register("counter", Counter())
    plateau = job.wrap(lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0))
    loader = job.loader(parts.images(), batch_size=2, shuffle=True)
    for _ in job.epochs(3):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            average.update_parameters(model)
            counter.step(0.5)
            optimizer.zero_grad()
        score = evaluate(model)
        counter.note(score)
        plateau.step(score)
    tell({"updates": int(average.n_averaged), "count": counter.count, "lr": optimizer.param_groups[0]["lr"]})


def evaluate(model: nn.Module) -> float:
    """Draws from all generators, in training mode and then not."""
    with torch.no_grad():
        noise = torch.randn(4, 3, 6, 6) + random.random() + float(np.random.randn())
        first = model(noise)
        model.eval()
        score = float((first + model(noise)).sum()) + float(torch.dropout(noise, 0.5, True).sum())
        model.train()
    return score


class Counter:
    """State of a script's own, with slots and without a class of ours."""

    __slots__ = ("count", "score")

    def __init__(self) -> None:
        self.count, self.score = 0.0, 0.0

    def step(self, by: float) -> None:
        self.count += by

    def note(self, score: float) -> None:
        self.score += score

    def state_dict(self) -> dict[str, float]:
        return {"count": self.count, "score": self.score}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.count, self.score = state["count"], state["score"]


def buffers(order: str) -> None:
    """Buffers that are replaced, written through `.data`, written between epochs, and written after the update."""
    job = melodeon.join(virtual_workers=V, seed=13, order=order)
    model = Remembers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2)
    for _ in job.epochs(2):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            model.heat.mul_(0.5)
        model.heat.add_(8.0)
    tell({"calls": int(model.calls), "heat": float(model.heat)})


class Remembers(nn.Module):
    """Counts its calls by making a new tensor each time, as many scripts do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(parts.FEATURES, parts.CLASSES)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("heat", torch.tensor(8.0))
        self.register_buffer("large", torch.zeros(70_000), persistent=False)
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))
        self.register_buffer("book", torch.zeros(70_000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        self.large = self.large + 1.0
        self.place.data.add_(1)
        self.book.data.add_(inputs.detach().mean())
        return self.layer(inputs) * self.heat * (1.0 + 0.01 * self.place) + self.large[0] + self.book.mean()


def draws_after(order: str) -> None:
    """Random numbers drawn in the loop after the update, unequally often before it."""
    job = melodeon.join(virtual_workers=V, seed=14, order=order)
    model = parts.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            torch.rand(3)
            random.random()
            np.random.randn()


def draws_unequally(order: str) -> None:
    """Virtual workers draw differently often; numpy's second normal of a pair leaves its position where it was."""
    job = melodeon.join(virtual_workers=V, seed=15, order=order)
    model = parts.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(), batch_size=2)
    for _ in job.epochs(1):
        for x, y in loader:
            noise = [np.random.randn() for _ in range(1 if job.virtual_rank in (0, 3) else 2)]
            job.backward(cross_entropy(model(x) + float(noise[0]), y) * float(1.0 + 0.1 * noise[-1]))
            optimizer.step()
            optimizer.zero_grad()
            np.random.randn()
