"""A job on an emulated accelerator: a device that takes a fixed time for each micro-batch, and a small model beside it.

    melodeon run --workers 4 --steps 100 benchmarks/live/device.py --micro-s 0.1 --step-s 0.05

The device is a clock: a micro-batch is done so long after it was begun, however busy the host is, as long as the host's
own part (a small forward and backward pass) takes less; a step takes some time more, in which the host exchanges
gradients, and which does not shrink with workers. So a machine can drive more devices than it has cores, and the time
of a step hardly says who else runs. All else is as in any job: processes, exchange, resizes, checkpoints.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import melodeon

AHEAD_S = 0.05
"""A host that is late by less keeps its device busy: the next piece of work was queued before."""


def work(begun: float, seconds: float) -> float:
    """Wait until the device, at work since then, is done; returns when it begins what comes next."""
    done = begun + seconds
    time.sleep(max(0.0, done - time.monotonic()))
    now = time.monotonic()
    return done if now - done < AHEAD_S else now


def main() -> None:
    """Train until the job's file says that it is enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-s", type=float, default=0.1, help="seconds that the device takes for a micro-batch")
    parser.add_argument("--step-s", type=float, default=0.0, help="and for every step, however many workers there are")
    parser.add_argument("--virtual-workers", type=int, default=4)
    args = parser.parse_args()

    job = melodeon.join(virtual_workers=args.virtual_workers, seed=0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    generator = torch.Generator().manual_seed(0)
    count = 8 * args.virtual_workers * 100
    data = TensorDataset(
        torch.randn(count, 32, generator=generator), torch.randint(0, 4, (count,), generator=generator)
    )
    loader = job.loader(data, batch_size=8, shuffle=True)

    for _ in job.epochs(100_000):
        begun, step = time.monotonic(), job.step
        for inputs, labels in loader:
            loss = functional.cross_entropy(model(inputs), labels)
            job.backward(loss)
            begun = work(begun, args.micro_s)
            job.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if job.step != step:
                begun, step = work(begun, args.step_s), job.step


if __name__ == "__main__":
    main()
