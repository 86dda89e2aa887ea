"""Scripts whose total batch changes, with everything in them that could betray on how many workers it did."""

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import lr_scheduler

import melodeon
from tests.runtime.loop import parts
from tests.runtime.loop.drawn import Meter

V = 4


def job(
    history: Sequence[tuple[int, int]] | None = None,
    epochs: int = 4,
    ramp_steps: int = 4,
    num_workers: int = 0,
    pace_s: float = 0.0,
    order: str = "tree",
    drop_last: bool = False,
    doubled_at: Sequence[int] = (),
    set_inside: bool = False,
    agree: bool = True,
    checkpoints: str = "",
) -> None:
    """Buffers, Dropout, momentum, a schedule by step, an evaluation that draws, metrics; 9 steps an epoch."""
    torch.set_num_threads(1)
    run = melodeon.join(virtual_workers=V, seed=5, order=order, log_every=3)  # type: ignore[arg-type]
    if agree:
        run.hybrid(ramp_steps=ramp_steps, history=history)
    model = nn.Sequential(
        nn.Linear(parts.FEATURES, 16), Meter(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, parts.CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    by_step = lr_scheduler.StepLR(optimizer, 3, gamma=0.95)
    model, optimizer, by_step = run.wrap(model, optimizer, by_step)
    loader = run.loader(parts.data(67), batch_size=2, shuffle=True, num_workers=num_workers, drop_last=drop_last)
    if checkpoints:
        run.checkpoint(checkpoints, every=3)
    for epoch in run.epochs(epochs):
        if doubled_at:
            run.batch_factor = 2 ** sum(epoch >= at for at in doubled_at)
        if set_inside:
            for _ in loader:
                run.batch_factor = 2
        parts.run_epoch(run, loader, model, optimizer, by_step, pace_s=pace_s)


def numbered(epochs: int = 2, doubled_at: int = 1) -> None:
    """Logs the virtual ranks: a mean of them tells of how many it is. 3 steps an epoch, and then 2."""
    torch.set_num_threads(1)
    run = melodeon.join(virtual_workers=V, seed=5, log_every=1)
    run.hybrid(ramp_steps=0)
    model = parts.mlp()
    model, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = run.loader(parts.data(24), batch_size=2)
    for epoch in run.epochs(epochs):
        run.batch_factor = 2 if epoch >= doubled_at else 1
        for x, y in loader:
            run.backward(nn.functional.cross_entropy(model(x), y))
            run.log(rank=float(run.virtual_rank or 0))
            optimizer.step()
            optimizer.zero_grad()


def after_the_loop(gate: str, epochs: int = 3) -> None:
    """Says at an epoch's end what the next one's factor is, and goes on when there is a file `gate`."""
    torch.set_num_threads(1)
    run = melodeon.join(virtual_workers=V, seed=5)
    run.hybrid(ramp_steps=0)
    model = parts.mlp()
    model, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = run.loader(parts.data(24), batch_size=2)
    idle = threading.Event()
    for epoch in run.epochs(epochs):
        parts.run_epoch(run, loader, model, optimizer)
        run.batch_factor = 2 ** (epoch + 1)
        while not Path(gate).exists():
            idle.wait(0.01)
