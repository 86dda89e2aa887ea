"""Train a small CNN on drawn digits, on any number of workers with the same bits. Compare with train_torch.py."""

import argparse

import torch
from data import load
from model import Cnn, accuracy, digest
from torch.nn import functional

import melodeon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per virtual worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--virtual-workers", type=int, default=4)
    parser.add_argument("--order", default="tree", help="tree, or ddp for the bits of train_ddp.py")
    args = parser.parse_args()

    job = melodeon.join(virtual_workers=args.virtual_workers, seed=args.seed, order=args.order)
    train, test = load()
    model = Cnn()
    loader = job.loader(train, args.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    model, optimizer, scheduler = job.wrap(model, optimizer, scheduler)

    for epoch in job.epochs(args.epochs):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            job.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}/{args.epochs}: accuracy {accuracy(model, test):.3f}")
    print(f"digest {digest(model)}")


if __name__ == "__main__":
    main()
