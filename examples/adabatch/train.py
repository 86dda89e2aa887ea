"""AdaBatch: the batch is doubled at given epochs instead of lowering the learning rate.

    melodeon run --name ada examples/adabatch/train.py --double-at 2,4
    python examples/adabatch/follow.py ada          (in another terminal: the workers follow the batch)

The result depends on the batches and not on the workers, so it is the same with and without the second line.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import melodeon


def rings(num_samples: int) -> TensorDataset:
    """Points on three rings around the origin."""
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(0, 3, (num_samples,), generator=generator)
    angle = 6.2832 * torch.rand(num_samples, generator=generator)
    radius = 1.0 + label + 0.25 * torch.randn(num_samples, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8, help="per virtual worker")
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--double-at", default="2,4", help="epochs at which the batch is doubled")
    args = parser.parse_args()
    double_at = [int(epoch) for epoch in args.double_at.split(",") if epoch]

    job = melodeon.join(virtual_workers=args.virtual_workers, seed=0)
    job.hybrid(ramp_steps=10)  # the batch may change, and the learning rate follows it over ten steps
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(rings(2000), args.batch_size, shuffle=True)

    for epoch in job.epochs(args.epochs):
        job.batch_factor = 2 ** sum(epoch >= at for at in double_at)
        first = job.step
        for points, labels in loader:
            loss = functional.cross_entropy(model(points), labels)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            job.log(loss=loss)
        print(f"epoch {epoch + 1}/{args.epochs}: {job.step - first} steps with batch factor {job.batch_factor}")
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"digest {digest.hexdigest()}")


if __name__ == "__main__":
    main()
