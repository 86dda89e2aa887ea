"""A small job for the cluster: points on rings, told apart by a network that keeps one core busy for a while.

    melodeon submit examples/cluster/best-effort.yaml
    melodeon run --steps 300 examples/cluster/train.py        (the same bits)

How long it takes is a matter of its steps: a few hundred are ten seconds or so on one core. It ends when the job's file
says so.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import melodeon


def rings(num_samples: int, num_classes: int) -> TensorDataset:
    """Points on rings around the origin, one ring a class."""
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(0, num_classes, (num_samples,), generator=generator)
    angle = 6.2832 * torch.rand(num_samples, generator=generator)
    radius = 1.0 + label + 0.2 * torch.randn(num_samples, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="more is slower")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1000, help="more than any job's file asks for")
    args = parser.parse_args()

    job = melodeon.join(virtual_workers=4, seed=args.seed)
    model = nn.Sequential(
        *(nn.Linear(2, args.width), nn.Tanh()),
        *(nn.Linear(args.width, args.width), nn.Tanh()),
        *(nn.Linear(args.width, args.width), nn.Tanh()),
        nn.Linear(args.width, 5),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(rings(12_800, 5), batch_size=128, shuffle=True)  # 25 steps an epoch

    for epoch in job.epochs(args.epochs):
        loss = torch.zeros(())
        for points, labels in loader:
            loss = functional.cross_entropy(model(points), labels)
            job.backward(loss)
            job.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f} after {job.step} steps", flush=True)


if __name__ == "__main__":
    main()
