"""Melodeon trains the same model, to the last bit, on any number of workers.

Importing this package is cheap and needs no torch: what trains (`join`, `Job`) is imported on first use.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from melodeon.core.errors import (
    Cancelled,
    CheckpointError,
    DefinitionError,
    MelodeonError,
    MissingTorch,
    NonFiniteLoss,
    NotBitwise,
    NotFound,
    UsageError,
    WorkerLost,
)

if TYPE_CHECKING:
    from melodeon.runtime.job import Job
    from melodeon.runtime.join import join

__version__ = "0.1.0.dev0"

__all__ = [
    "Cancelled",
    "CheckpointError",
    "DefinitionError",
    "Job",
    "MelodeonError",
    "MissingTorch",
    "NonFiniteLoss",
    "NotBitwise",
    "NotFound",
    "UsageError",
    "WorkerLost",
    "__version__",
    "join",
]

_LAZY = {"Job": "melodeon.runtime.job", "join": "melodeon.runtime.join"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'melodeon' has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingTorch(f"melodeon.{name}")
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
