"""Digits drawn by the project itself: a small bitmap font, moved, turned, stretched and covered with noise.

Drawing uses a generator of its own, so it takes nothing from the random numbers of the training.
"""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

SIZE = 16
NUM_TRAIN = 2001
"""Divides by neither the batch size nor the number of ranks, as real data rarely does."""
NUM_TEST = 500

FONT = (
    (" ### ", "#   #", "#  ##", "# # #", "##  #", "#   #", " ### "),
    ("  #  ", " ##  ", "# #  ", "  #  ", "  #  ", "  #  ", "#####"),
    (" ### ", "#   #", "    #", "  ## ", " #   ", "#    ", "#####"),
    ("#### ", "    #", "    #", " ### ", "    #", "    #", "#### "),
    ("   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "),
    ("#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "),
    ("  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "),
    ("#####", "    #", "   # ", "  #  ", "  #  ", " #   ", " #   "),
    (" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "),
    (" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "),
)
"""Seven rows of five dots a digit."""


def load(num_train: int = NUM_TRAIN) -> tuple[TensorDataset, TensorDataset]:
    """The digits to train on and those to test on."""
    return draw(num_train, seed=1), draw(NUM_TEST, seed=2)


def draw(count: int, seed: int) -> TensorDataset:
    """`count` images of shape (1, SIZE, SIZE) and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    grid = _looks(count, generator)
    images = functional.grid_sample(_glyphs()[labels], grid, align_corners=False)
    images += 0.25 * torch.randn(images.shape, generator=generator)
    return TensorDataset((images - images.mean()) / images.std(), labels)


def _glyphs() -> Tensor:
    """The font, shape (10, 1, 9, 9), each digit in a margin."""
    dots = torch.tensor([[[float(dot == "#") for dot in row] for row in digit] for digit in FONT])
    return functional.pad(dots, (2, 2, 1, 1)).unsqueeze(1)


def _looks(count: int, generator: torch.Generator) -> Tensor:
    """For every pixel of every image, where in the glyph to look, shape (count, SIZE, SIZE, 2)."""

    def spread(by: float) -> Tensor:
        return (2 * torch.rand(count, 1, 1, generator=generator) - 1) * by

    line = torch.linspace(-1, 1, SIZE)
    x, y = line.view(1, 1, SIZE) + spread(0.2), line.view(1, SIZE, 1) + spread(0.2)
    angle, shear, width, height = spread(0.35), spread(0.25), 1 + spread(0.2), 1 + spread(0.2)
    turned_x = (x * angle.cos() - y * angle.sin()) * width + y * shear
    turned_y = (x * angle.sin() + y * angle.cos()) * height
    return torch.stack([turned_x, turned_y], dim=-1)
