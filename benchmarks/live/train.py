"""The job that live benchmarks resize and hurt: a plain loop, and a line for every commit.

melodeon run [OPTIONS] benchmarks/live/train.py --model mlp --commits FOLDER
"""

import argparse
import os
import threading

import torch
from cases import CASES, CommitLog
from torch.nn.functional import cross_entropy

import melodeon
from melodeon.core.launch import Launch


def main() -> None:
    """Train until the job is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=CASES, default="mlp")
    parser.add_argument("--commits", required=True, help="folder of the commit logs")
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds that a virtual worker's device works")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    launch = Launch.from_env(os.environ) or Launch()
    number = launch.worker_number if launch.elastic else launch.worker
    case = CASES[options.model]
    job = melodeon.join(virtual_workers=options.virtual_workers, seed=0, device=options.device)
    model = case.make(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=case.fused)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(case.data(), batch_size=case.batch // options.virtual_workers, shuffle=True)
    device = threading.Event()  # never set: waiting for it is the work of a device that is not the CPU
    with CommitLog(options.commits, f"worker-{number}") as log:
        for _ in job.epochs(1_000_000):
            for inputs, targets in loader:
                if options.wait:
                    device.wait(options.wait)
                job.backward(cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                if job.committed:
                    log.add(job.step)


if __name__ == "__main__":
    main()
