"""Train a small GPT on characters, in plain PyTorch on one process. Compare with train_melodeon.py."""

import argparse

import torch
from data import load
from model import Gpt, digest, evaluate
from torch.nn import functional
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test, num_characters = load()
    model = Gpt(num_characters)
    loader = DataLoader(train, args.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, args.epochs * len(loader))

    for epoch in range(args.epochs):
        for codes, targets in loader:
            loss = functional.cross_entropy(model(codes), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}/{args.epochs}: loss {evaluate(model, test):.3f}")
    print(f"digest {digest(model)}")


if __name__ == "__main__":
    main()
