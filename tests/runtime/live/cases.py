"""Scripts for live elasticity: with everything in them that could betray a resize, and a step that can be slowed."""

import gc
import select
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset

import melodeon
from tests.runtime.loop import parts

V = 4


def everything(
    order: str = "tree", epochs: int = 12, pace_s: float = 0.02, num_workers: int = 0, beyond: str = ""
) -> None:
    """BatchNorm, Dropout, momentum, a schedule by epoch, an evaluation that draws, metrics.

    A byte is written to the file `beyond` whenever a worker has come to the end of an epoch.
    """
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5, order=order)  # type: ignore[arg-type]
    model = nn.Sequential(
        nn.Linear(parts.FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, parts.CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    by_epoch = lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    model, optimizer, by_epoch = job.wrap(model, optimizer, by_epoch)
    loader = job.loader(parts.data(44), batch_size=3, shuffle=True, num_workers=num_workers)
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s)
        by_epoch.step()
        if beyond:
            with Path(beyond).open("ab") as file:
                file.write(b".")


def forked(epochs: int = 20, pace_s: float = 0.01) -> None:
    """Reads ahead with a loader process that is a fork of the worker, as they are where nobody says otherwise."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5)
    model = parts.mlp()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(parts.data(44), batch_size=3, num_workers=1, multiprocessing_context="fork")
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s)


def _with_momentum(order: str = "tree") -> tuple[Any, ...]:
    """A job, its model, its optimizer and a loader of four steps an epoch."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5, order=order)  # type: ignore[arg-type]
    model = parts.mlp()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1))
    return job, model, optimizer, job.loader(parts.data(44), batch_size=3, shuffle=True)


def broken_off(epochs: int = 5, pace_s: float = 0.02) -> None:
    """Each epoch is left by `break` after its second step; the next one begins with a rate that the script sets."""
    job, model, optimizer, loader = _with_momentum()
    for epoch in job.epochs(epochs):
        optimizer.param_groups[0]["lr"] = 0.1 / (epoch + 1)
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s, leave_every=2)


def frozen_later(epochs: int = 2) -> None:
    """Gradients are cleared before they are made, as many scripts do; a layer is frozen after step 6."""
    job, model, optimizer, loader = _with_momentum()
    for _ in job.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            if job.committed and job.step == 6:
                model[0].requires_grad_(False)


def wide(epochs: int = 16, pace_s: float = 0.02) -> None:
    """A state of several megabytes, which crosses in several pieces."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5)
    model = parts.mlp(64 << 10)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.01))
    average = job.register("average", AveragedModel(model))
    loader = job.loader(parts.data(44), batch_size=3, shuffle=True)
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s)
        average.update_parameters(model)


class SlowSamples(Dataset[torch.Tensor]):
    """Each of which takes a while to read."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        threading.Event().wait(self._seconds)
        return torch.full((2,), float(index))


def slow_data(seconds: float) -> None:
    """Nothing takes long but to read a sample, of which each virtual worker needs one a step."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=2, seed=5)
    model = nn.Linear(2, 1)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    loader = job.loader(SlowSamples(seconds), batch_size=1)
    for _ in job.epochs(1):
        for x in loader:
            job.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()


def uncollected(epochs: int = 12) -> None:
    """`everything`, without the collector of cycles, which runs when it likes: seldom, where steps leave nothing."""
    gc.disable()
    everything(epochs=epochs)


def _await(file: Path) -> None:
    while not file.exists():
        select.select([], [], [], 0.01)


class Slow:
    """Takes its state back once a file is there, and says that it is about to."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def state_dict(self) -> dict[str, str]:
        return {}

    def load_state_dict(self, _: object) -> None:
        with self._gate.with_suffix(".reached").open("ab") as file:
            file.write(b".")
        _await(self._gate)


class Asked:
    """Says on which threads it is asked for its state."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def state_dict(self) -> dict[str, str]:
        with self._file.open("a") as file:
            file.write(f"{threading.current_thread().name}\n")
        return {}

    def load_state_dict(self, _: object) -> None:
        """There is nothing to take back."""


def asked(threads: str, epochs: int = 12, pace_s: float = 0.02) -> None:
    """Leaves in a file which threads have asked for the state."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5, order="ddp")
    model = parts.mlp()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.register("asked", Asked(Path(threads)))
    loader = job.loader(parts.data(44), batch_size=3)
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s)


def slow_to_load(gate: str, epochs: int = 4) -> None:
    """Goes on from a checkpoint when the file `gate` is there."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5)
    model = parts.mlp()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1))
    job.register("slow", Slow(Path(gate)))
    loader = job.loader(parts.data(44), batch_size=3, shuffle=True)
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer)


class Masked(nn.Module):
    """Has expanded buffers, in which several elements lie in one place; one of them is not in its `state_dict()`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = parts.mlp()
        self.register_buffer("mask", torch.tensor([True]).expand(parts.FEATURES), persistent=False)
        self.register_buffer("scale", torch.tensor([0.5]).expand(parts.FEATURES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs * self.mask * self.scale)


def masked(epochs: int = 12, pace_s: float = 0.02) -> None:
    """Trains `Masked`."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=V, seed=5)
    model, optimizer = job.wrap(model := Masked(), torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(parts.data(44), batch_size=3)
    for _ in job.epochs(epochs):
        parts.run_epoch(job, loader, model, optimizer, pace_s=pace_s)


def held(files: str, epochs: int = 3, at: tuple[int, ...] = (5, 6), frozen: tuple[int, ...] = ()) -> None:
    """Ends these steps when a file of that name is there; a layer is frozen after the first of `frozen`, and trained
    again after the second.
    """
    job, model, optimizer, loader = _with_momentum()
    for _ in job.epochs(epochs):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            if job.step + 1 in at:
                _await(Path(files, str(job.step + 1)))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step in frozen:
                model[0].requires_grad_(job.step == frozen[1])


def between(gate: str, order: str = "tree", leave_at: int = 0) -> None:
    """Waits for a file after the first epoch, as for a long evaluation; one epoch may be left by `break`.

    A byte is written to the file `GATE.reached` by everybody who waits.
    """
    job, model, optimizer, loader = _with_momentum(order)
    for epoch in job.epochs(3):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step == leave_at:
                break
        if epoch == 0:
            with Path(f"{gate}.reached").open("ab") as file:
                file.write(b".")
            _await(Path(gate))
