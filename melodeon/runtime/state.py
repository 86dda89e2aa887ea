"""The whole state of a job at a step's boundary, as one tree: captured, digested, stored, restored.

Everything that the next step depends on is in it, and nothing that depends on the assignment: any worker's capture is
the job's. Names are those of the user's `state_dict()`s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from melodeon.core.errors import CheckpointError, UsageError


class Stateful(Protocol):
    """What can be registered: it can say its state and take it back."""

    def state_dict(self) -> Any:
        """The state as plain values and tensors."""

    def load_state_dict(self, state: Any) -> Any:
        """Take over a state."""


@dataclass(slots=True)
class Parts:
    """The user's objects whose state is the job's."""

    models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    registered: dict[str, Stateful] = field(default_factory=dict)


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside torch.compile's or DistributedDataParallel's wrapper."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def named_parameters(models: Sequence[torch.nn.Module]) -> list[tuple[str, torch.nn.Parameter]]:
    """Every parameter once, with the name that messages use."""
    found: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for index, model in enumerate(models):
        prefix = "" if len(models) == 1 else f"{index}."
        for name, param in bare(model).named_parameters():
            found.setdefault(id(param), (prefix + name, param))
    return list(found.values())


def capture(parts: Parts) -> dict[str, Any]:
    """The state of the user's objects, sharing memory with them."""
    return {
        "models": {str(i): bare(model).state_dict() for i, model in enumerate(parts.models)},
        "buffers": {str(i): _unsaved_buffers(bare(model)) for i, model in enumerate(parts.models)},
        "frozen": [name for name, param in named_parameters(parts.models) if not param.requires_grad],
        "optimizers": {str(i): optimizer.state_dict() for i, optimizer in enumerate(parts.optimizers)},
        "schedulers": {str(i): scheduler.state_dict() for i, scheduler in enumerate(parts.schedulers)},
        "scalers": {str(i): scaler.state_dict() for i, scaler in enumerate(parts.scalers)},
        "registered": {name: owner.state_dict() for name, owner in sorted(parts.registered.items())},
    }


def restore(parts: Parts, state: Mapping[str, Any]) -> None:
    """Put a captured state back, in place."""
    groups: list[tuple[str, Mapping[str, Any]]] = [
        ("models", {str(i): bare(model) for i, model in enumerate(parts.models)}),
        ("optimizers", {str(i): optimizer for i, optimizer in enumerate(parts.optimizers)}),
        ("schedulers", {str(i): scheduler for i, scheduler in enumerate(parts.schedulers)}),
        ("scalers", {str(i): scaler for i, scaler in enumerate(parts.scalers)}),
        ("registered", parts.registered),
    ]
    for kind, owners in groups:
        stored = state.get(kind, {})
        if set(stored) != set(owners):
            raise CheckpointError(
                f"the checkpoint has {kind} {sorted(stored)} and the script has {sorted(owners)}: "
                "wrap and register the same objects, in the same order, as when it was written"
            )
        for name, owner in owners.items():
            if kind == "models" and _is_own(owner.state_dict(), stored[name]):
                continue  # it was received in place
            try:
                owner.load_state_dict(stored[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split())[:300]
                raise CheckpointError(
                    f"{kind} {name!r} of the checkpoint does not fit the script's: {reason}"
                ) from error
    _restore_buffers(parts, state.get("buffers", {}))
    frozen = set(state.get("frozen", ()))
    for name, param in named_parameters(parts.models):
        param.requires_grad_(name not in frozen)


def _is_own(own: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a stored state is the very memory of the module that it would be loaded into."""

    def where(value: Any) -> tuple[Any, ...]:
        return (value.data_ptr(), value.shape, value.dtype) if isinstance(value, torch.Tensor) else (id(value),)

    return own.keys() == stored.keys() and all(where(value) == where(stored[name]) for name, value in own.items())


def check_registered(name: str, owner: object, taken: Mapping[str, object]) -> None:
    """Refuse what cannot be stored."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"job.register({name!r}, ...) needs a name, such as 'ema'")
    if name in taken:
        raise UsageError(
            f"job.register({name!r}, ...) was called before: every registered object needs a name of its own"
        )
    missing = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(owner, method, None))]
    if missing:
        raise UsageError(
            f"job.register({name!r}, ...) was given a {type(owner).__name__}, which has no {' or '.join(missing)}(): "
            "give it both, so that its state can be kept"
        )


def _unsaved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that `state_dict()` leaves out (persistent=False)."""
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _restore_buffers(parts: Parts, stored: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    with torch.no_grad():
        for index, model in enumerate(parts.models):
            buffers = dict(bare(model).named_buffers())
            for name, value in stored.get(str(index), {}).items():
                buffers[name].copy_(value)
