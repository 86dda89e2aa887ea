"""Counts and times the operators of one step, by module path, for `melodeon scan`.

What the operators mean for a determinism level is no matter of running them: that is `melodeon.core.optable`.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from melodeon.runtime.oprecord import computes_nothing
from melodeon.runtime.oprecord_mode import Watch
from melodeon.runtime.oprecord_where import Whereabouts


class OpScan:
    """Gathers one row a (module, operator, phase, device) between `enter` and `leave`; may be entered many times."""

    def __init__(self, modules: Mapping[str, nn.Module] | None = None) -> None:
        self._where = Whereabouts(dict(modules or {}))
        self._watch = Watch(self._call)
        self._deterministic = (False, False)
        # (module, op, phase, device) -> [calls, seconds]
        self._rows: dict[tuple[str, str, str, str], list[float]] = {}

    def enter(self, *, commit: bool = False) -> None:
        """Begin to count; `commit=True` for the optimizer's part of the step."""
        self._deterministic = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        # A scan is to list the operators that have no deterministic kernel, not to end at the first.
        torch.use_deterministic_algorithms(self._deterministic[0], warn_only=True)
        self._where.start(commit=commit)
        self._watch.start()

    def leave(self) -> None:
        """Stop counting; harmless where nothing was entered."""
        if self._watch.running:
            self._watch.stop()
            self._where.stop()
            enabled, warn_only = self._deterministic
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)

    def report(self) -> list[dict[str, Any]]:
        """The rows, longest time first: module, op, phase, device, count, time_s and its share of all the time."""
        total = sum(seconds for _, seconds in self._rows.values()) or 1.0
        return [
            {
                "module": module,
                "op": op,
                "phase": phase,
                "device": device,
                "count": int(count),
                "time_s": seconds,
                "share": seconds / total,
            }
            for (module, op, phase, device), (count, seconds) in sorted(self._rows.items(), key=lambda row: -row[1][1])
        ]

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        where = self._where.now()
        if computes_nothing(func):
            return func(*args, **kwargs)
        device = _device(args, kwargs)
        _wait(device)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        _wait(device)
        seconds = time.perf_counter() - start
        module, phase = (where.module, where.phase) if where else ("", "backward")
        row = self._rows.setdefault((module, str(func), phase, device), [0, 0.0])
        row[0] += 1
        row[1] += seconds
        return result


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The kind of device that the operator runs on: an accelerator if any argument lives there."""
    kinds = {str(kwargs["device"]).partition(":")[0]} if kwargs.get("device") is not None else set()
    stack = [*args, *kwargs.values()]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            kinds.add(value.device.type)
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return next(iter(sorted(kinds - {"cpu", "meta"})), "cpu")


def _wait(device: str) -> None:
    # Kernels of an accelerator are started and left running; their time is known only when they are done.
    if device == "cuda":
        torch.cuda.synchronize()
