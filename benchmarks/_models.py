"""The models that benchmarks train: residual networks and a GPT, written plainly, with no weights to fetch."""

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 with `expansion` 4, around a shortcut."""

    def __init__(self, inside: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        if expansion == 1:
            shapes = [(inside, width, 3, stride), (width, out, 3, 1)]
        else:
            shapes = [(inside, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        layers: list[nn.Module] = []
        for number, (a, b, kernel, step) in enumerate(shapes):
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b)]
            if number < len(shapes) - 1:
                layers.append(nn.ReLU())
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the shortcut, then rectify."""
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(blocks: tuple[int, ...], expansion: int, classes: int, *, small_images: bool) -> nn.Module:
    """ResNet of the given shape; `small_images` starts without the two early halvings."""
    stem: list[nn.Module] = (
        [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        if small_images
        else [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    )
    layers, inside = stem, 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            layers.append(Residual(inside, width, 2 if stage and block == 0 else 1, expansion))
            inside = width * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def resnet18(*, classes: int = 10, small_images: bool = True) -> nn.Module:
    """11M parameters."""
    return resnet((2, 2, 2, 2), 1, classes, small_images=small_images)


def resnet50(*, classes: int = 1000, small_images: bool = False) -> nn.Module:
    """25M parameters."""
    return resnet((3, 4, 6, 3), 4, classes, small_images=small_images)


class Block(nn.Module):
    """A transformer block: causal attention and a two-layer network, each behind a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to the past, then transform each position."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True, dropout_p=rate)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder with tied input and output embeddings; returns the loss of predicting the next token."""

    def __init__(self, vocab: int, length: int, depth: int, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for name, param in self.named_parameters():
            if param.dim() > 1 and "norm" not in name:
                nn.init.normal_(param, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy over all positions."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt10m() -> GPT:
    """About 10M parameters."""
    return GPT(vocab=2048, length=128, depth=5, width=384, heads=6)


def gpt2() -> GPT:
    """GPT-2's 124M parameters."""
    return GPT(vocab=50304, length=1024, depth=12, width=768, heads=12)


class Classifier(nn.Module):
    """An image model that returns its loss, as the GPT does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy."""
        return functional.cross_entropy(self.model(images), labels)
