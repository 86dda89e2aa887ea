"""Scripts that keep checkpoints; an option ends them in some place as a power cut would."""

import os
import random
import signal
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import melodeon
from tests.runtime.loop import parts
from tests.runtime.loop.state_cases import Counter, evaluate

V = 5
STEPS_PER_EPOCH = 5


def train(
    order: str,
    kept: str,
    every: int = 2,
    epochs: int = 3,
    seed: int = 21,
    kill: tuple[int, int, str, int] | None = None,
    save: bool = False,
    thaw_at: int | None = None,
    virtual_workers: int = V,
    batch_size: int = 2,
    nan: str = "raise",
    strict: bool = True,
) -> None:
    """Everything that has state: BatchNorm, momentum, schedules by step and by epoch, a scaler, an average, a counter.

    `kill=(step, worker, where, stored)` ends that worker with SIGKILL at that step, before or after the update or in
    the epoch's end, as soon as the checkpoint of step `stored` is on the disk.
    """
    job = melodeon.join(virtual_workers=virtual_workers, seed=seed, order=order, nan=nan)
    model = nn.Sequential(*parts.cnn(), nn.Dropout(0.2))
    if thaw_at is not None:
        model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    by_epoch = lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    model, optimizer, by_epoch = job.wrap(model, optimizer, by_epoch)
    head_lr = job.wrap(lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step)))
    scaler = job.wrap(torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3))
    average = job.register("average", AveragedModel(model, avg_fn=lambda a, b, _: 0.9 * a + 0.1 * b))
    counter = job.register("counter", Counter())
    loader = job.loader(parts.images(48), batch_size=batch_size, shuffle=True)
    if every:
        job.checkpoint(kept, every=every, strict=strict)
    die = partial(_die, job, Path(kept), kill)
    for _ in job.epochs(epochs):
        for x, y in loader:
            job.backward(scaler.scale(cross_entropy(model(x), y)))
            die("before")
            scaler.step(optimizer)
            scaler.update()
            head_lr.step()
            average.update_parameters(model)
            counter.step(1.0)
            optimizer.zero_grad()
            random.random(), np.random.randn(), torch.rand(2)
            if job.committed:
                die("after")
                if job.step == thaw_at:
                    model[0].requires_grad_(True)
        counter.note(evaluate(model))
        by_epoch.step()
        die("tail")
        if save:
            job.save()


def _die(job: melodeon.Job, kept: Path, kill: tuple[int, int, str, int] | None, where: str) -> None:
    if kill is None or (kill[0], kill[2]) != (job.step, where):
        return
    if kill[1] == 0:
        if job.worker == 0:
            end_when_stored(job, kept, kill[3])
        return
    assert where != "before", "only behind the update do all workers come by once"
    if job.worker == 0:
        job.course.keeper.wait()
    job.course.group.barrier()  # worker 0 stores; the one that is to end hears of it here
    if job.worker == kill[1]:
        end_when_stored(job, kept, kill[3])


def breaking(order: str, kept: str, every: int = 2, kill: tuple[int, int, int] | None = None) -> None:
    """Every epoch is left after three steps, and has an end of its own."""
    job = melodeon.join(virtual_workers=V, seed=22, order=order)
    model = parts.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    by_epoch = lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    model, optimizer, by_epoch = job.wrap(model, optimizer, by_epoch)
    loader = job.loader(parts.data(50), batch_size=2, shuffle=True)
    if every:
        job.checkpoint(kept, every=every)
    for _ in job.epochs(3):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step % 3 == 0:
                break
            if kill is not None and kill[:2] == (job.step, job.worker):
                end_when_stored(job, Path(kept), kill[2])
        by_epoch.step()


def narrowing(order: str, kept: str) -> None:
    """An object that does not take back what it gave: PyTorch casts optimizer state to the parameters' type."""
    job = melodeon.join(virtual_workers=2, seed=23, order=order)
    model = nn.Linear(parts.FEATURES, parts.CLASSES).to(torch.bfloat16)
    model, optimizer = job.wrap(model, Precise(model.parameters(), {"lr": 0.01}))
    job.checkpoint(kept, every=1)
    loader = job.loader(parts.data(8), batch_size=4)
    for _ in job.epochs(2):
        for x, y in loader:
            job.backward(cross_entropy(model(x.bfloat16()).float(), y))
            optimizer.step()
            optimizer.zero_grad()


class Precise(torch.optim.Optimizer):
    """Keeps a float32 copy of bf16 parameters in its state."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                master = state.setdefault("master", param.detach().float())
                master.sub_(param.grad.float(), alpha=group["lr"])
                with torch.no_grad():
                    param.copy_(master)


def end_when_stored(job: melodeon.Job, folder: Path, step: int) -> None:
    """A power cut, once the background writer is done."""
    job.course.keeper.wait()
    assert (folder / f"step-{step:010d}.melodeon").exists(), f"no checkpoint of step {step}"
    os.kill(os.getpid(), signal.SIGKILL)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.melodeon"))
