"""Scripts for live elasticity: with everything in them that could betray a resize, and a step that can be slowed."""

import threading

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import melodeon
from tests.runtime.loop import parts

V = 4


def everything(order: str = "tree", epochs: int = 12, pace_s: float = 0.02, num_workers: int = 0) -> None:
    """BatchNorm, Dropout, momentum, schedules by step and by epoch, an evaluation that draws, metrics.

    `pace_s` makes a virtual worker's part of a step last so long, as a larger model would.
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
    idle = threading.Event()
    for _ in job.epochs(epochs):
        for x, y in loader:
            idle.wait(pace_s)
            loss = cross_entropy(model(x), y)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            job.log(loss=loss)
        by_epoch.step()
        with torch.no_grad():
            model(torch.randn(8, parts.FEATURES))
