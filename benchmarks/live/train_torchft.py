"""The same job as users of torchft write it: every process is a replica group of one.

Gradients go through `manager.allreduce`, tensor by tensor, not through torchft.DistributedDataParallel: with that
(0.2.0, gloo) every survivor of a lost replica ends with `'Future' object has no attribute '_fut'`.

TORCHFT_LIGHTHOUSE=http://... python benchmarks/live/train_torchft.py --model mlp --commits FOLDER
"""

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
import torchft  # type: ignore[import-not-found]  # in an environment of its own
from cases import CASES, CommitLog
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main() -> None:
    """Train until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=CASES, default="mlp")
    parser.add_argument("--commits", required=True)
    parser.add_argument("--replicas", type=int, default=2, help="what the step's samples are divided by")
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.model]
    torch.manual_seed(0)
    module = case.make()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=case.fused)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"process-{os.getpid()}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=timedelta(seconds=30),
    )
    params = [param for param in module.parameters() if param.requires_grad]
    managed = torchft.Optimizer(manager, optimizer)
    loader = DataLoader(case.data(), batch_size=max(1, case.batch // options.replicas), shuffle=True)
    with CommitLog(options.commits, f"process-{os.getpid()}") as log:
        while True:
            for inputs, targets in loader:
                before = manager.current_step()
                managed.zero_grad()
                cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
                for work in [manager.allreduce(param.grad) for param in params]:
                    work.wait()
                managed.step()
                if manager.current_step() > before:
                    log.add(manager.current_step())


if __name__ == "__main__":
    main()
