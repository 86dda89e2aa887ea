"""The job that live benchmarks resize and hurt: a plain loop, and a line for every commit.

melodeon run [OPTIONS] benchmarks/live/train.py --model mlp --commits FOLDER
"""

import argparse
import os
import socket
import threading

import torch
from cases import CASES, CommitLog
from torch.nn.functional import cross_entropy

import melodeon
from melodeon.core.launch import Launch


class Turns:
    """Trains only when told to, a block of steps at a time, where contenders take turns."""

    def __init__(self, path: str, name: str, block: int) -> None:
        self._block, self._left = block, 0
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(path)
        self._line.sendall(name.encode() + b"\n")

    def next_step(self) -> None:
        """Before each step: say that a block is done, and wait for the word to begin another."""
        if self._left == 0:
            self._line.sendall(b".")
            if not self._line.recv(1):
                raise SystemExit("the benchmark has ended")
            self._left = self._block
        self._left -= 1


def main() -> None:
    """Train until the job is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=CASES, default="mlp")
    parser.add_argument("--commits", required=True, help="folder of the commit logs")
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds that a virtual worker's device works")
    parser.add_argument("--turns", default="", help="socket at which turns are given")
    parser.add_argument("--name", default="", help="who this is, for the turns")
    parser.add_argument("--block", type=int, default=10, help="steps of a turn")
    options = parser.parse_args()
    launch = Launch.from_env(os.environ) or Launch()
    number = launch.worker_number if launch.elastic else launch.worker
    case = CASES[options.model]
    job = melodeon.join(virtual_workers=options.virtual_workers, seed=0)
    model = case.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(case.data(), batch_size=case.batch // options.virtual_workers, shuffle=True)
    turns = Turns(options.turns, options.name, options.block) if options.turns else None
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
                    if turns is not None:
                        turns.next_step()


if __name__ == "__main__":
    main()
