"""Scripts for the tests of survival."""

import threading

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import melodeon
from tests.runtime.loop import parts


def one_epoch(pace_s: float = 0.02, thaw_at: int | None = None) -> None:
    """A single long epoch: whoever is behind is behind in the same one. With `thaw_at` a layer is frozen until then."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=4, seed=5)
    model = nn.Sequential(
        nn.Linear(parts.FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, parts.CLASSES)
    )
    model[0].requires_grad_(thaw_at is None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(408), batch_size=3, shuffle=True)
    idle = threading.Event()
    for _ in job.epochs(1):
        for x, y in loader:
            idle.wait(pace_s)
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step == thaw_at:
                model[0].requires_grad_(True)
