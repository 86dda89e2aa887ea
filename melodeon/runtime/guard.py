"""Watches for what a script may do inside a step that would make the result depend on who runs what.

Until the update, weights must stay as they are and gradients belong to the job: a script that clips them by itself,
runs a backward pass of its own or changes weights would do so between virtual workers that happen to share a worker.
Autograd's version counters show it, for a few dozen nanoseconds a parameter. Gradients that the job has already taken
away cannot show anything, so a trip wire takes the place of one of them: a zero that nobody should touch.
"""

from collections.abc import Sequence
from operator import is_

import torch

from melodeon.core.errors import UsageError


class Guard:
    """Remembers weights and gradients as the job left them."""

    def __init__(self, params: Sequence[torch.nn.Parameter], names: Sequence[str]) -> None:
        self._params = list(params)
        self._names = list(names)
        self._weights: list[int] = []
        self._gradients: list[torch.Tensor | None] = []
        self._versions: list[int] = []
        self._wired = min(self._params, key=lambda param: param.numel())
        self._wire = torch.zeros_like(self._wired, requires_grad=False)
        self.begin_step()

    def begin_step(self) -> None:
        """Weights are as the last update left them, or the script since then; there are no gradients."""
        self._weights = [param._version for param in self._params]
        self._remember()

    def leave_gradients(self) -> None:
        """A backward pass of the job is over."""
        if self._wired.grad is None:
            self._wired.grad = self._wire
        self._remember()

    def _remember(self) -> None:
        self._gradients = [param.grad for param in self._params]
        self._versions = [-1 if grad is None else grad._version for grad in self._gradients]

    def check(self, step: int) -> None:
        """Refuse to go on if somebody else has changed something; take the trip wire away."""
        if [param._version for param in self._params] != self._weights:
            changed = [param._version != seen for param, seen in zip(self._params, self._weights, strict=True)]
            raise UsageError(
                f"{self._names[changed.index(True)]!r} was changed in step {step} before the update, by the script or "
                "in a forward pass: change weights once per step, after optimizer.step() and under `if job.committed:`"
            )
        gradients = [param.grad for param in self._params]
        if all(map(is_, gradients, self._gradients)):
            versions = [-1 if grad is None else grad._version for grad in gradients]
            if versions == self._versions:
                if self._wired.grad is self._wire:
                    self._wired.grad = None
                return
            changed = [now != seen for now, seen in zip(versions, self._versions, strict=True)]
        else:
            changed = [now is not seen for now, seen in zip(gradients, self._gradients, strict=True)]
        raise UsageError(
            f"the gradient of {self._names[changed.index(True)]!r} was changed outside job.backward in step {step}: "
            "clip with job.clip_grad_norm_(...), and add further losses to the one given to job.backward(loss)"
        )
