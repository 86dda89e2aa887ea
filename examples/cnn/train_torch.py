"""Train a small CNN on drawn digits, in plain PyTorch on one process. Compare with train_melodeon.py."""

import argparse

import torch
from data import load
from model import Cnn, accuracy, digest
from torch.nn import functional
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load()
    model = Cnn()
    loader = DataLoader(train, args.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}/{args.epochs}: accuracy {accuracy(model, test):.3f}")
    print(f"digest {digest(model)}")


if __name__ == "__main__":
    main()
