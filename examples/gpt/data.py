"""Characters of the project's own prose: every window is a sample, the same window one character on its target.

`text.txt` was taken from the pages of docs/ once and stays as it is, so that the data, and with it the digest, does.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

WINDOW = 64
"""Characters that the model sees at once."""


class Characters(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text that overlap by half."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def __len__(self) -> int:
        return (len(self.codes) - WINDOW - 1) // (WINDOW // 2) + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * (WINDOW // 2)
        piece = self.codes[start : start + WINDOW + 1]
        return piece[:-1], piece[1:]


def load() -> tuple[Characters, Characters, int]:
    """Windows to train on, windows of the last tenth to test on, and how many different characters there are."""
    text = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
    alphabet = {character: code for code, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[character] for character in text])
    cut = len(codes) * 9 // 10
    return Characters(codes[:cut]), Characters(codes[cut:]), len(alphabet)
