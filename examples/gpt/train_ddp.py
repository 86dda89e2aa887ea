"""Train a small GPT on characters, in stock DistributedDataParallel; nothing of Melodeon is imported.

    torchrun --nproc-per-node 4 train_ddp.py

ends with the digest of `melodeon run --workers N train_melodeon.py --virtual-workers 4 --order ddp`, for every N.
"""

import argparse
import os

import torch
import torch.distributed as dist
from data import load
from model import Gpt, digest, evaluate
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="per process")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    # The same kernels as determinism D1: one thread, and results that do not depend on where tensors lie in memory.
    os.environ["MKL_CBWR"] = "AUTO"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    train, test, num_characters = load()
    model = DistributedDataParallel(Gpt(num_characters))
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, args.batch_size, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for codes, targets in loader:
            loss = functional.cross_entropy(model(codes), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        loss_now = evaluate(model.module, test)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {loss_now:.3f}", flush=True)
    if dist.get_rank() == 0:
        print(f"digest {digest(model.module)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
