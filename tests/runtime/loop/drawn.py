"""Jobs drawn from a seed: every feature of the loop that can meet another does, sooner or later."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import melodeon
from tests.runtime.loop import parts

VIRTUAL_WORKERS = (1, 2, 3, 4, 5, 7, 8, 11, 16)


class Drawn:
    """What the seed decides; the same in every process that asks."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.virtual_workers = draw.choice(VIRTUAL_WORKERS)
        self.order = draw.choice(["tree", "ddp"])
        self.batch_size = draw.randint(1, 4)
        self.num_samples = draw.randint(1, 6 * self.virtual_workers)
        uneven = ["pad"] if self.num_samples < self.virtual_workers * self.batch_size else ["pad", "drop"]
        self.uneven = draw.choice([*uneven, "exact"])
        self.branch = draw.choice([None, 2, 3])
        """A layer that a virtual worker uses only every so often."""
        self.optimizers = draw.choice([["sgd"], ["adamw"], ["rmsprop"], ["sgd", "adamw"]])
        self.schedule = draw.choice([None, "step", "epoch"])
        self.clip = draw.choice([None, 0.5])
        self.passes = draw.choice([1, 1, 2])
        self.half = draw.choice([False, False, True])
        self.meter = draw.choice([False, True])
        self.average = draw.choice([False, True])
        self.evaluate = draw.choice([False, True])
        self.leave_at = draw.choice([None, None, 2])
        self.loader_processes = draw.choice([0] * 9 + [1])
        self.stop_at = draw.randint(1, 4)
        """Where the second run is stopped, to go on with other workers."""
        self._draw = draw

    def split(self) -> tuple[int, ...]:
        """Another assignment to at most four workers."""
        cuts = self._draw.sample(
            range(1, self.virtual_workers), min(self._draw.randint(0, 3), self.virtual_workers - 1)
        )
        edges = [0, *sorted(cuts), self.virtual_workers]
        return tuple(b - a for a, b in pairwise(edges))


class Meter(nn.Module):
    """Keeps running values in buffers, in place and by assignment, at any batch size; one is left out of state_dict."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.count = self.count + 1
        return x - self.mean / (1 + self.count)


class Net(nn.Module):
    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        width = 8
        self.body = nn.Linear(parts.FEATURES, width)
        self.meter = Meter(width) if drawn.meter else nn.Identity()
        self.branch = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width, dtype=torch.bfloat16 if drawn.half else torch.float32))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, parts.CLASSES)

    def forward(self, x: torch.Tensor, *, branch: bool) -> torch.Tensor:
        x = self.meter(torch.tanh(self.body(x)))
        if branch:
            x = torch.tanh(self.branch(x))
        return self.head(self.drop(x * self.gain.float()))


def optimizers(drawn: Drawn, model: Net) -> list[torch.optim.Optimizer]:
    makers: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    }
    groups = [list(model.parameters())]
    if len(drawn.optimizers) == 2:
        head = list(model.head.parameters())
        groups = [[p for p in model.parameters() if all(p is not q for q in head)], head]
    return [makers[name](group) for name, group in zip(drawn.optimizers, groups, strict=True)]


def job(seed: int, kept: str) -> None:
    """Train the drawn job for two epochs, with checkpoints in `kept`."""
    drawn = Drawn(seed)
    job = melodeon.join(
        virtual_workers=drawn.virtual_workers, seed=seed, order=drawn.order, log_every=3, find_unused_parameters=True
    )
    model = Net(drawn)
    owners = optimizers(drawn, model)
    schedules = [lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in owners] if drawn.schedule else []
    model, *owners = job.wrap(model, *owners)
    for schedule in schedules:
        job.wrap(schedule)
    average = job.register("average", torch.optim.swa_utils.AveragedModel(model)) if drawn.average else None
    loader = job.loader(
        parts.data(drawn.num_samples),
        batch_size=drawn.batch_size,
        shuffle=True,
        uneven=drawn.uneven,
        num_workers=drawn.loader_processes,
    )
    job.checkpoint(kept, every=2)
    for _ in job.epochs(2):
        for x, y in loader:
            branch = drawn.branch is not None and (job.course.beat.step + (job.virtual_rank or 0)) % drawn.branch == 0
            loss = cross_entropy(model(x, branch=branch), y)
            if drawn.passes == 2:
                job.backward(0.5 * loss, more=True)
                loss = 0.5 * cross_entropy(model(x, branch=branch), y)
            job.backward(loss)
            job.log(loss=loss)
            if drawn.clip is not None:
                job.clip_grad_norm_(drawn.clip)
            for optimizer in owners:
                optimizer.step()
                optimizer.zero_grad()
            if drawn.schedule == "step":
                for schedule in schedules:
                    schedule.step()
            if average is not None:
                average.update_parameters(model)
            if job.committed and drawn.leave_at is not None and job.step % 3 == drawn.leave_at:
                break
        if drawn.evaluate:
            model.eval()
            with torch.no_grad():
                model(torch.randn(3, parts.FEATURES), branch=True)
            model.train()
        if drawn.schedule == "epoch":
            for schedule in schedules:
                schedule.step()


def describe(seed: int) -> str:
    """What was drawn, for the message of a failure."""
    return str({name: value for name, value in vars(Drawn(seed)).items() if name != "_draw"})


def checkpoints(folder: Path) -> str:
    """Where a run keeps its checkpoints."""
    return str(folder.with_name(folder.name + "-checkpoints"))
