"""`python -m melodeon.runtime.selfcheck LEVEL`: train a small model for a few steps and print its digest as JSON.

Two processes that a level calls equal must print the same digest. `--offset` moves every parameter in memory, which
must not matter from D1 on. The model has what is known to differ by instruction set, alignment and threads:
convolution, normalisation, attention, gelu, matrix-vector products, cross entropy, an adaptive optimizer.
"""

import argparse
import hashlib
import json
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

from melodeon.core.errors import MelodeonError
from melodeon.runtime.determinism import apply

STEPS = 3


class Probe(nn.Module):
    """A little of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.hidden = nn.Linear(12, 101)
        self.vector = nn.Parameter(torch.randn(101))
        self.left, self.right = nn.Parameter(torch.randn(515)), nn.Parameter(torch.randn(515))
        self.head = nn.Linear(12, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, shape (batch, 10)."""
        tokens = self.norm(self.convolution(images).flatten(2).transpose(1, 2))
        mixed: Tensor = self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1)
        gate = functional.gelu(self.hidden(mixed)) @ self.vector
        scale = self.left.dot(self.right) / 515  # a dot product is what alignment shows in
        scores: Tensor = self.head(mixed) * (gate * scale).sigmoid().unsqueeze(1)
        return scores


def train(device: str, offset: int) -> str:
    """The digest of the parameters after a few steps."""
    torch.manual_seed(0)
    model = Probe()
    images, labels = torch.randn(8, 3, 9, 9).to(device), torch.arange(8, device=device)
    model.to(device)
    for parameter in model.parameters():
        moved = torch.empty(parameter.numel() + offset, device=device)[offset:].view_as(parameter)
        parameter.data = moved.copy_(parameter.data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(images), labels))
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def main() -> int:
    """Print one JSON object: the digest and what it stands on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("level")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    try:
        facts = apply(options.level, None, launched_level=options.level, device=options.device)
    except MelodeonError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program of its own
        return error.exit_code
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    result = {"digest": train(options.device, options.offset), "facts": facts, "gpus": gpus}
    print(json.dumps(result))  # noqa: T201 - a program of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())
