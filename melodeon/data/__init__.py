"""Data sets of a kind that `torch.utils.data` has none of: `Partitioned`, for sets kept in many files or shards.

Importing this package is cheap and needs no torch: what reads is imported on first use.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from melodeon.core.errors import MissingTorch

if TYPE_CHECKING:
    from melodeon.runtime.partitioned import Partitioned

__all__ = ["Partitioned"]

_LAZY = {"Partitioned": "melodeon.runtime.partitioned"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'melodeon.data' has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingTorch(f"melodeon.data.{name}")
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
