"""Small models, data and a loop that cases share. Data is drawn from generators of its own, never from the job's."""

import threading
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import melodeon

FEATURES = 6
CLASSES = 4


def data(num_samples: int = 44, *, features: int = FEATURES) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(num_samples, features, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (num_samples,), generator=generator))


def images(num_samples: int = 44) -> TensorDataset:
    generator = torch.Generator().manual_seed(8)
    inputs = torch.randn(num_samples, 3, 6, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (num_samples,), generator=generator))


def run_epoch(
    job: melodeon.Job,
    loader: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    by_step: Any = None,
    *,
    pace_s: float = 0.0,
    features: int = FEATURES,
    leave_every: int = 0,
) -> None:
    """The plain loop, with a schedule by step and metrics, and then an evaluation that draws.

    `pace_s` makes a virtual worker's part of a step last so long, as a larger model would; `leave_every`: the loop is
    left by `break` whenever so many steps are done.
    """
    idle = threading.Event()
    for x, y in loader:
        idle.wait(pace_s)
        loss = cross_entropy(model(x), y)
        job.backward(loss)
        job.log(loss=loss)
        optimizer.step()
        if by_step is not None:
            by_step.step()
        optimizer.zero_grad()
        if leave_every and job.committed and job.step % leave_every == 0:
            break
    with torch.no_grad():
        model(torch.randn(8, features, device=job.device))


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, CLASSES))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
    )


class Tied(nn.Module):
    """A token model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(self.embed(tokens))))


class Branches(nn.Module):
    """A layer that only some samples use, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 8)
        self.extra = nn.Linear(8, 8)
        self.idle = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor, *, extra: bool) -> torch.Tensor:
        hidden = torch.tanh(self.body(inputs))
        return self.head(torch.tanh(self.extra(hidden)) if extra else hidden)
