"""A small job whose steps take as long as somebody says: most of a step is waited, as for a device of its own.

So many of them train side by side and live through many controllers, and leave the processors to those who start.
"""

import argparse
import threading

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import melodeon


def samples(num_samples: int) -> TensorDataset:
    """Points, and in which of two halves they are."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(num_samples, 4, generator=generator)
    return TensorDataset(points, (points.sum(1) > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step waits")
    parser.add_argument("--epochs", type=int, default=1_000_000, help="more than any job's file asks for")
    args = parser.parse_args()

    job = melodeon.join(virtual_workers=4, seed=args.seed)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(samples(6400), batch_size=64, shuffle=True)  # 25 steps an epoch
    never = threading.Event()

    for _ in job.epochs(args.epochs):
        for points, labels in loader:
            loss = functional.cross_entropy(model(points), labels)
            job.backward(loss)
            job.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            never.wait(args.pace)


if __name__ == "__main__":
    main()
