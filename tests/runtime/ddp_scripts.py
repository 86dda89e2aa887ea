"""The same trainings twice: written by hand for stock DistributedDataParallel, and with Melodeon's five lines.

`plain` uses torch alone. Both hash what they see with `fingerprint`, not with Melodeon's own digests, and write one
JSON file a process: the state after every step, and every rank's loss in it.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import melodeon
from melodeon.core.launch import Launch

SEED = 7
NUM_EPOCHS = 2
NUM_SAMPLES = 50
"""No multiple of 3 or 4: padding, and a short last batch, in every epoch."""
BATCH = 4


class Cnn(nn.Module):
    """BatchNorm and Dropout; its last layers are more than DDP's first bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Gpt(nn.Module):
    """Causal attention with tied weights: the head's gradient and the embedding's are one."""

    def __init__(self, vocabulary: int = 512, width: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(12, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(12), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.places
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden)).flatten(0, 1)


class Branches(nn.Module):
    """A frozen layer, a branch that only some batches take, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.common, self.rare, self.never = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.common(torch.tanh(self.frozen(x)))
        if x.sum() > 0:
            hidden = hidden + self.rare(x)
        return self.head(F.dropout(hidden, 0.2, self.training))


@dataclass(frozen=True)
class Case:
    """One training."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    sample: tuple[int, ...]
    num_classes: int
    clip: float | None = None
    find_unused: bool = False

    def data(self) -> Dataset[Any]:
        """The same on every process."""
        generator = torch.Generator().manual_seed(1)
        if self.model is Gpt:
            tokens = torch.randint(0, self.num_classes, (NUM_SAMPLES, *self.sample), generator=generator)
            return TensorDataset(tokens, tokens.roll(-1, dims=1))
        labels = torch.randint(0, self.num_classes, (NUM_SAMPLES,), generator=generator)
        return TensorDataset(torch.randn(NUM_SAMPLES, *self.sample, generator=generator), labels)

    def between_epochs(self, model: nn.Module) -> None:
        """Draws random numbers, as every rank does alike: once with BatchNorm at work, once as an evaluation."""
        with torch.no_grad():
            for training in (True, False):
                model.train(training)
                if self.model is Gpt:
                    model(torch.randint(0, self.num_classes, (2, *self.sample)))
                else:
                    model(torch.randn(2, *self.sample))
        model.train()


CASES = {
    "cnn": Case(Cnn, lambda params: torch.optim.AdamW(params, lr=1e-2), (1, 12, 12), 10),
    "gpt": Case(Gpt, lambda params: torch.optim.AdamW(params, lr=1e-2), (12,), 512, clip=0.5),
    "branches": Case(
        Branches,
        lambda params: torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=0.01),
        (16,),
        4,
        find_unused=True,
    ),
}


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A hash for every parameter, buffer and tensor of the optimizer."""
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    tensors |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"{name} {number}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest() for name, t in tensors.items()}


class Notes:
    """What one process saw."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = []
        self.losses: dict[str, list[str]] = {}

    def loss(self, rank: int, loss: torch.Tensor) -> None:
        self.losses.setdefault(str(rank), []).append(loss.detach().item().hex())

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"states": self.states, "losses": self.losses}))


_ALIVE: list[nn.Module] = []
"""Stock models to the end of their processes: taking one apart with its process group hung now and then, a thread
of gloo's waiting for the interpreter lock that the destructor, which waits for the thread, was holding."""


def plain(case_name: str, rank: int, world_size: int, folder: str) -> None:
    """One process of a stock training, as it is written everywhere."""
    case, notes = CASES[case_name], Notes()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    bare = case.model()
    model = DistributedDataParallel(bare, find_unused_parameters=case.find_unused)
    optimizer = case.optimizer(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    dataset = case.data()
    sampler = DistributedSampler(dataset, shuffle=True, seed=SEED)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            if case.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            optimizer.step()
            scheduler.step()
            notes.loss(rank, loss)
            notes.states.append(fingerprint(bare, optimizer))
        case.between_epochs(model)
    notes.write(Path(folder) / f"notes-{rank}.json")
    _ALIVE.append(model)


def ours(case_name: str, worker: int, counts: tuple[int, ...], folder: str) -> None:
    """One worker of the same training with Melodeon."""
    case, notes = CASES[case_name], Notes()
    launch = Launch(
        worker=worker, num_workers=len(counts), counts=counts, rendezvous=f"{folder}/meeting", run_dir=folder,
        determinism="D1", threads=1, resume=False,
    )  # fmt: skip
    os.environ.update(launch.to_env())
    job = melodeon.join(virtual_workers=sum(counts), seed=SEED, order="ddp", find_unused_parameters=case.find_unused)
    model = case.model()
    optimizer = case.optimizer(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    model, optimizer, scheduler = job.wrap(model, optimizer, scheduler)
    loader = job.loader(case.data(), batch_size=BATCH, shuffle=True)
    for _ in job.epochs(NUM_EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y.flatten())
            optimizer.zero_grad()
            job.backward(loss)
            if case.clip is not None:
                job.clip_grad_norm_(model.parameters(), case.clip)
            optimizer.step()
            scheduler.step()
            assert job.virtual_rank is not None
            notes.loss(job.virtual_rank, loss)
            if job.committed:
                notes.states.append(fingerprint(model, optimizer))
        case.between_epochs(model)
    job.close()
    notes.write(Path(folder) / f"notes-{worker}.json")
