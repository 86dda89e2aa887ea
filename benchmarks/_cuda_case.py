"""A training script for `cuda_bits`: a CNN with BatchNorm and Dropout, or a GPT with tied weights, on whatever device
there is.
"""

import sys

import torch
from _models import GPT, Classifier
from torch import nn
from torch.utils.data import TensorDataset

import melodeon


def build(name: str) -> tuple[nn.Module, TensorDataset]:
    """The model and its data."""
    generator = torch.Generator().manual_seed(1)
    if name == "gpt":
        ids = torch.randint(0, 512, (67, 65), generator=generator)
        return GPT(512, 64, depth=3, width=192, heads=6, dropout=0.1), TensorDataset(ids[:, :-1], ids[:, 1:])
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.BatchNorm2d(64),
    ]
    head = [nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64 * 16 * 16, 10)]
    images = torch.randn(67, 3, 32, 32, generator=generator)
    return Classifier(nn.Sequential(*layers, *head)), TensorDataset(
        images, torch.randint(0, 10, (67,), generator=generator)
    )


def main() -> None:
    """Train for two epochs."""
    name, precision = sys.argv[1], sys.argv[2]
    job = melodeon.join(virtual_workers=4, seed=0)
    model, data = build(name)
    model = model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    model, optimizer, scheduler = job.wrap(model, optimizer, scheduler)
    loader = job.loader(data, batch_size=4, shuffle=True)
    for _ in job.epochs(2):
        for inputs, targets in loader:
            inputs, targets = inputs.to(job.device), targets.to(job.device)
            with torch.autocast(job.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(inputs, targets)
            job.backward(loss)
            job.log(loss=loss)
            job.clip_grad_norm_(1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
