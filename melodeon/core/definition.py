"""What defines the bits of a run, as a flat value that is stored with everything the run writes.

Two runs with equal definitions (and equal code and data) give equal models; a checkpoint of one definition is not
continued under another without being told to.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Definition:
    """Named facts: virtual workers, seed, order, level, threads, instruction sets, torch, batch sizes, optimizers."""

    values: Mapping[str, Value] = field(default_factory=dict)

    def differences(self, other: "Definition") -> list[str]:
        """One phrase a fact that differs: `threads is 1 there and 2 here`, where `other` is here."""
        names = list(dict.fromkeys([*self.values, *other.values]))
        return [
            f"{name} is {self.values.get(name)!r} there and {other.values.get(name)!r} here"
            for name in names
            if self.values.get(name) != other.values.get(name)
        ]

    def marks(self) -> str:
        """`loader0=1f3a9c04 seed=...`: equal where all facts are, and short enough to be sent again and again."""
        marked = [(name, json.dumps(value, default=str)) for name, value in sorted(self.values.items())]
        return " ".join(f"{name}={hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}" for name, text in marked)


def unlike(marks: str, others: str) -> list[str]:
    """The names of the facts by which two definitions differ, given their marks."""
    return sorted({mark.partition("=")[0] for mark in {*marks.split()} ^ {*others.split()}})
