"""Train a small GPT on characters, on any number of workers with the same bits. Compare with train_torch.py."""

import argparse

import torch
from data import load
from model import Gpt, digest, evaluate
from torch.nn import functional

import melodeon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="per virtual worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--order", default="tree", help="tree, or ddp for the bits of train_ddp.py")
    args = parser.parse_args()

    job = melodeon.join(virtual_workers=args.virtual_workers, seed=args.seed, order=args.order)
    train, test, num_characters = load()
    model = Gpt(num_characters)
    loader = job.loader(train, args.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, args.epochs * len(loader))
    model, optimizer, scheduler = job.wrap(model, optimizer, scheduler)

    for epoch in job.epochs(args.epochs):
        for codes, targets in loader:
            loss = functional.cross_entropy(model(codes), targets)
            job.backward(loss)
            job.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}/{args.epochs}: loss {evaluate(model, test):.3f}")
    print(f"digest {digest(model)}")


if __name__ == "__main__":
    main()
