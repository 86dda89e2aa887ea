"""The same job as users of torchrun write it: DistributedDataParallel, and a checkpoint every so many steps.

torchrun ... benchmarks/live/train_ddp.py --model mlp --commits FOLDER --checkpoint FILE
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import CASES, CommitLog
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train until stopped; go on from the checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=CASES, default="mlp")
    parser.add_argument("--commits", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--device", default="cpu", help="one for all processes: a GPU that they share")
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.model]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    module = case.make(options.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=case.fused)
    step = epoch = 0
    if options.checkpoint.exists():
        found: dict[str, Any] = torch.load(options.checkpoint, map_location=options.device, weights_only=True)
        module.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step, epoch = found["step"], found["epoch"]
        del found
    model = DistributedDataParallel(module)
    data = case.data()
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=max(1, case.batch // world), sampler=sampler)
    with CommitLog(options.commits, f"process-{os.getpid()}") as log:
        while True:
            sampler.set_epoch(epoch)
            for batch in loader:
                inputs, targets = (tensor.to(options.device) for tensor in batch)
                cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                log.add(step)
                if rank == 0 and step % case.checkpoint_every == 0:
                    part = options.checkpoint.with_suffix(".part")
                    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "step": step, "epoch": epoch}, part)
                    part.replace(options.checkpoint)
            epoch += 1


if __name__ == "__main__":
    main()
