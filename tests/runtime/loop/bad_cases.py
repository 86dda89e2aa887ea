"""Scripts with one mistake each, for several workers."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import melodeon
from tests.runtime.loop import parts


def train(virtual_workers: int = 4, uneven_break: bool = False, grow_at: int | None = None, **join: object) -> None:
    """A good script, but for what the options do."""
    job = melodeon.join(virtual_workers=virtual_workers, seed=1, **join)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dataset = Growing(16)
    loader = job.loader(dataset, batch_size=2)
    for epoch in job.epochs(2):
        if epoch == grow_at:
            dataset.length += 1
        for number, (x, y) in enumerate(loader):
            if uneven_break and number == 4:
                break
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


class Growing(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset whose length can be changed."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._data = parts.data(32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._data[index]


def other_weights() -> None:
    """Worker 1 starts from another bias."""
    job = melodeon.join(virtual_workers=4, seed=1)
    model = nn.Sequential(nn.Linear(parts.FEATURES, 8), nn.Linear(8, parts.CLASSES))
    if job.worker == 1:
        with torch.no_grad():
            model[1].bias[2] += 1e-6
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in job.epochs(1):
        pass


def other_length() -> None:
    """Worker 1 finds a sample more."""
    job = melodeon.join(virtual_workers=4, seed=1)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.loader(Growing(16 + job.worker), batch_size=2)
    for _ in job.epochs(1):
        pass


def other_epochs() -> None:
    """Worker 1 has an epoch more."""
    job = melodeon.join(virtual_workers=4, seed=1)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in job.epochs(1 + job.worker):
        pass


def other_shape() -> None:
    """Worker 1 has a layer more."""
    job = melodeon.join(virtual_workers=4, seed=1)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(1 + job.worker)])
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in job.epochs(1):
        pass


def drifts() -> None:
    """Worker 1 changes a weight by itself in step 2, after the update."""
    job = melodeon.join(virtual_workers=4, seed=1, receipt_every=1)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(parts.data(16), batch_size=1)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.step == 2 and job.worker == 1:
                with torch.no_grad():
                    model.bias[0] += 1e-6


def fails() -> None:
    """The script itself fails on worker 1."""
    job = melodeon.join(virtual_workers=4, seed=1)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(parts.data(16), batch_size=1)
    for _ in job.epochs(1):
        for x, y in loader:
            if job.worker == 1 and job.step == 1:
                raise ZeroDivisionError("the script's own mistake")
            job.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def clips_by_itself(order: str) -> None:
    """Clips what lies in `.grad`, which is not yet the job's."""
    job = melodeon.join(virtual_workers=4, seed=1, order=order)
    model = nn.Linear(parts.FEATURES, parts.CLASSES)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(parts.data(16), batch_size=1)
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(cross_entropy(model(x), y))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
