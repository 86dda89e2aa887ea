"""Calls that the loop makes once per virtual worker and that must take effect once per step.

A gate replaces a method of the user's object and leaves the object itself alone: `isinstance`, `state_dict()` and every
other method go on working, and the scheduler's `optimizer` is still the same object.
"""

import sys
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from types import MethodType
from typing import Any, Protocol

import torch

from melodeon.core.errors import UsageError


class Turnstile(Protocol):
    """What a gate asks of the job."""

    def acts_now(self) -> bool:
        """Whether a call made now takes effect: outside the steps, and for the last local virtual worker of one."""

    def reach_update(self, caller: str) -> bool:
        """The virtual worker is done up to its update; True if that happens now: `.grad` is then the job's."""

    def begin_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that the optimizer steps; False if this step's update is to be skipped."""

    def gradients_needed(self) -> bool:
        """Whether gradients of the step in progress must survive a `zero_grad`."""


class _Passage:
    """Whether the scaler is stepping this optimizer right now, having asked the job itself."""

    def __init__(self) -> None:
        self.open = False


def gate_optimizer(optimizer: torch.optim.Optimizer, job: Turnstile) -> None:
    """`step` and `zero_grad` once per step."""
    step, zero_grad = optimizer.step, optimizer.zero_grad
    passage = optimizer.__dict__.setdefault("_melodeon_passage", _Passage())

    @wraps(step)
    def gated_step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None, **kwargs: Any) -> Any:
        if closure is not None:
            raise UsageError(
                f"{type(self).__name__}.step was given a closure, which would run the model again inside the update: "
                "call job.backward(loss) and then optimizer.step()"
            )
        if passage.open:
            return step(**kwargs)
        if _called_by_scaler():
            raise UsageError(
                f"{type(self).__name__}.step was called by a GradScaler that is not wrapped: pass the scaler to "
                "job.wrap(...) too"
            )
        if not job.reach_update("optimizer.step()"):
            return None
        return step(**kwargs) if job.begin_update(self) else None

    @wraps(zero_grad)
    def gated_zero_grad(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        if not job.gradients_needed():
            zero_grad(*args, **kwargs)

    # Bound methods, not functions: a scheduler made after this binds what it finds here once more.
    optimizer.step = MethodType(gated_step, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = MethodType(gated_zero_grad, optimizer)  # type: ignore[method-assign]


def _called_by_scaler() -> bool:
    """Whether a GradScaler calls `step`: it has just unscaled what lay in `.grad`, which leaves no other trace."""
    frame = sys._getframe(2)  # the caller of the gate, or the scheduler's wrapper around it
    for _ in range(2):
        if frame.f_globals.get("__name__") == torch.amp.GradScaler.__module__:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def gate_zero_grad(model: torch.nn.Module, job: Turnstile) -> None:
    """`model.zero_grad()` must not clear a neighbour's gradients either."""
    zero_grad = model.zero_grad

    @wraps(zero_grad)
    def gated(*args: Any, **kwargs: Any) -> None:
        if not job.gradients_needed():
            zero_grad(*args, **kwargs)

    model.zero_grad = gated  # type: ignore[method-assign]


def gate_scaler(scaler: "torch.amp.GradScaler", job: Turnstile) -> None:
    """`scale` for every virtual worker; `unscale_`, `step` and `update` once per step."""
    unscale, step, update = scaler.unscale_, scaler.step, scaler.update
    unscaled: set[int] = set()

    @wraps(unscale)
    def gated_unscale(optimizer: torch.optim.Optimizer) -> None:
        if job.reach_update("scaler.unscale_()"):
            unscale(optimizer)
            unscaled.add(id(optimizer))

    @wraps(step)
    def gated_step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not job.reach_update("scaler.step()"):
            return None
        if not job.begin_update(optimizer):
            if id(optimizer) not in unscaled:
                unscale(optimizer)  # looks for infinities, without which `update` has nothing to go by
            return None
        # The scaler itself decides whether the optimizer steps: its call goes through.
        passage = optimizer.__dict__.setdefault("_melodeon_passage", _Passage())
        passage.open = True
        try:
            return step(optimizer, *args, **kwargs)
        finally:
            passage.open = False

    @wraps(update)
    def gated_update(*args: Any, **kwargs: Any) -> None:
        if job.acts_now():
            unscaled.clear()
            update(*args, **kwargs)

    scaler.unscale_ = gated_unscale  # type: ignore[method-assign]
    scaler.step = gated_step  # type: ignore[method-assign]
    scaler.update = gated_update  # type: ignore[method-assign]


def methods_of(owner: object, names: Iterable[str]) -> list[str]:
    """The names that a script gave, all of them methods of the object."""
    kind = type(owner)
    if isinstance(names, str):
        raise UsageError(f"once={names!r} is one string: pass the names of methods in a tuple, once=({names!r},)")
    found = list(names)
    for name in found:
        if not isinstance(name, str) or not callable(getattr(kind, name, None)):
            raise UsageError(
                f"job.register(..., once=...) names {name!r}, and {kind.__name__} has no such method: name methods of "
                "its class"
            )
    return found


def gate_methods(owner: object, names: Collection[str], job: Turnstile) -> None:
    """Make these methods take effect once per step; names the object does not have are passed over.

    The object gets a subclass of its own rather than attributes: many a `state_dict()` is simply `self.__dict__`.
    """
    kind, own = type(owner), getattr(owner, "__dict__", {})
    for name in names:
        if callable(own.get(name)):
            raise UsageError(
                f"{name!r} of this {kind.__name__} was set on the object, where it would take effect once per virtual "
                "worker: make it a method of the class, or leave it out of job.register(..., once=(...))"
            )
    methods = {name: _once(getattr(kind, name), job) for name in names if callable(getattr(kind, name, None))}
    if methods:
        # No slots of its own: only then may it take the place of a class that has some.
        namespace = {**methods, "__module__": kind.__module__, "__doc__": kind.__doc__, "__slots__": ()}
        owner.__class__ = type(kind.__name__, (kind,), namespace)


def _once(method: Callable[..., Any], job: Turnstile) -> Callable[..., Any]:
    @wraps(method)
    def gated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs) if job.acts_now() else None

    return gated
