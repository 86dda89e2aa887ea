"""Melodeon trains the same model, to the last bit, on any number of workers.

Importing this package is cheap and needs no torch: what trains (`join`, `Job`) is imported on first use.
"""

import importlib
import sys
from importlib.util import find_spec
from types import TracebackType
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
    Unreachable,
    UsageError,
    WorkerLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from melodeon.coord.client import JobHandle
    from melodeon.coord.client import connect as attach
    from melodeon.runtime.job import Job
    from melodeon.runtime.join import join

__version__ = "0.1.0.dev0"

__all__ = [
    "Cancelled",
    "CheckpointError",
    "DefinitionError",
    "Job",
    "JobHandle",
    "MelodeonError",
    "MissingTorch",
    "NonFiniteLoss",
    "NotBitwise",
    "NotFound",
    "Unreachable",
    "UsageError",
    "WorkerLost",
    "__version__",
    "attach",
    "join",
]

_LAZY = {
    "Job": ("melodeon.runtime.job", "Job"),
    "JobHandle": ("melodeon.coord.client", "JobHandle"),
    "attach": ("melodeon.coord.client", "connect"),
    "join": ("melodeon.runtime.join", "join"),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'melodeon' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    if module.startswith("melodeon.runtime") and find_spec("torch") is None:
        before, sys.excepthook = sys.excepthook, lambda *uncaught: _say(before, *uncaught)
        raise MissingTorch(f"melodeon.{name}")
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def _say(
    before: "Callable[[type[BaseException], BaseException, TracebackType | None], object]",
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """One sentence and its exit code instead of a traceback, for the person who has nothing to mend in the script."""
    if isinstance(error, MissingTorch):
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    before(kind, error, trace)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
