"""A small GPT: two blocks, attention with four heads, Dropout, and one weight for both embedding and output."""

import hashlib

import torch
from data import WINDOW, Characters
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 96
HEADS = 4


class Block(nn.Module):
    """Attention, then a perceptron, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape (batch, window, WIDTH) in and out."""
        batch, window, _ = tokens.shape
        query, key, value = (
            part.view(batch, window, HEADS, -1).transpose(1, 2)
            for part in self.mix(self.norm1(tokens)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.out(seen.transpose(1, 2).reshape(batch, window, WIDTH))
        return tokens + self.think(self.norm2(tokens))


class Gpt(nn.Module):
    """Scores for the next character at every place."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, WIDTH))
        self.blocks = nn.Sequential(nn.Dropout(0.1), Block(), Block(), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, num_characters, bias=False)
        nn.init.normal_(self.characters.weight, std=0.02)
        self.scores.weight = self.characters.weight

    def forward(self, codes: Tensor) -> Tensor:
        """Codes, (batch, window), to scores, (batch, num_characters, window), as cross_entropy takes them."""
        scores: Tensor = self.scores(self.blocks(self.characters(codes) + self.places))
        return scores.transpose(1, 2)


@torch.no_grad()
def evaluate(model: nn.Module, windows: Characters) -> float:
    """The mean loss on windows that were not trained on."""
    device = next(model.parameters()).device
    codes, targets = (
        torch.stack(part).to(device) for part in zip(*(windows[i] for i in range(len(windows))), strict=True)
    )
    model.eval()
    loss = functional.cross_entropy(model(codes), targets).item()
    model.train()
    return loss


def digest(model: nn.Module) -> str:
    """SHA-256 over every parameter and buffer: two models have the same one only if they agree to the last bit."""
    hasher = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(tensor.cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
