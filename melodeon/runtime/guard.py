"""Watches for what a script may do inside a step that would make the result depend on who runs what.

Until the update, weights must stay as they are and gradients belong to the job: a script that clips them by itself,
runs a backward pass of its own or changes weights would do so between virtual workers that happen to share a worker.
Autograd's version counters show it, for a few dozen nanoseconds a parameter, and addresses show what was put in a
weight's place; what is written through `param.data` shows in neither. So in a worker's first steps, which show what a
script does, the weights themselves are summed up before and after. Gradients that the job has already taken away cannot
show anything, so a trip wire takes the place of one of them: a zero that nobody should touch.

Where a step is many small kernels, reading an attribute of every parameter is time that the device waits. So gradients
are read once before a backward pass and once after it, and what was read is handed on to and from whoever sums them.
"""

from collections.abc import Sequence
from operator import attrgetter, is_

import torch

from melodeon.core.errors import UsageError

Grads = list[torch.Tensor | None]
Marks = tuple[Grads, list[int]]
"""Gradients, and how often each was written; -1 where there is none."""

FIRST_STEPS = 4
"""Steps of a worker in which values are compared too: it takes as long as reading them twice."""

_grad, _version, _place = attrgetter("grad"), attrgetter("_version"), torch.Tensor.data_ptr
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def grads_of(params: Sequence[torch.nn.Parameter]) -> Grads:
    """What lies in `.grad`, for each parameter."""
    return list(map(_grad, params))


def marks_of(params: Sequence[torch.nn.Parameter]) -> Marks:
    """What lies in `.grad`, and how often each was written."""
    grads = grads_of(params)
    return grads, _versions(grads)


def sums_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The sum of each tensor's bits, taken as whole numbers: another one means other values."""
    if not tensors:
        return []
    found = []
    for tensor in tensors:
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        bits = _BITS[plain.element_size()]
        found.append(plain.view(bits).sum(dtype=bits))  # it may wrap around, which costs no temporary copy
    sums: list[int] = torch.stack([one.to(torch.int64) for one in found]).tolist()  # one wait for the device
    return sums


class Weights:
    """Remembers all weights, trained or frozen, as the last update left them."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        # Tensors of inference mode have no version; sparse ones have no place, and no state can hold them anyway.
        watched = [(name, p) for name, p in named if not p.is_inference() and p.layout == torch.strided]
        self._names = [name for name, _ in watched]
        self._params = [param for _, param in watched]
        self._versions: list[int] = []
        self._places: list[int] = []
        self._held: list[torch.Tensor] = []
        """The memory at those places: while it is held, nothing else can come to lie there."""
        self._sums: list[int] | None = None
        """What the weights' bits sum up to; None: not taken in this step."""
        self._steps = 0
        """How many have begun here."""

    def begin_step(self) -> None:
        """Weights are as the last update left them, or the script since then."""
        self._versions = list(map(_version, self._params))
        places = list(map(_place, self._params))
        if places != self._places:
            self._places, self._held = places, [param.data for param in self._params]
        self._sums = sums_of(self._params) if self._steps < FIRST_STEPS else None
        self._steps += 1

    def check(self, step: int) -> None:
        """Refuse to update weights if somebody has changed one since the step began."""
        versions, places = list(map(_version, self._params)), list(map(_place, self._params))
        before = self._sums
        sums = None if before is None else sums_of(self._params)
        if versions == self._versions and places == self._places and sums == before:
            return
        for index, name in enumerate(self._names):
            written = versions[index] != self._versions[index] or bool(sums and before and sums[index] != before[index])
            if written or not self._kept(index, places[index]):
                raise UsageError(
                    f"{name!r} was changed in step {step} before the update, by the script or in a forward pass: "
                    "change weights once per step, after optimizer.step() and under `if job.committed:`"
                )

    def _kept(self, index: int, place: int) -> bool:
        """Whether a weight has its values, even in another place: an RNN's flatten_parameters() moves it there."""
        now, before = self._params[index], self._held[index]
        alike = now.device == before.device and now.dtype == before.dtype
        return place == self._places[index] or (alike and torch.equal(now, before))


class Guard:
    """Remembers gradients as the job left them."""

    def __init__(self, params: Sequence[torch.nn.Parameter], names: Sequence[str]) -> None:
        self._params = list(params)
        self._names = list(names)
        self._marks: Marks = ([], [])
        self._wired = min(range(len(self._params)), key=lambda index: self._params[index].numel())
        self._wire = torch.zeros_like(self._params[self._wired], requires_grad=False)
        self._bare: Marks = ([None] * len(self._params), [-1] * len(self._params))
        """No gradients at all."""
        self.begin_step()

    def begin_step(self) -> None:
        """There are no gradients."""
        self._marks = self._bare

    def leave(self, grads: Grads | None) -> None:
        """A backward pass of the job is over; `grads` still lie in the parameters' `.grad`, None: all were taken."""
        grads, versions = self._bare if grads is None else (grads, _versions(grads))
        if grads[self._wired] is None:
            self._params[self._wired].grad = self._wire
            grads, versions = grads.copy(), versions.copy()
            grads[self._wired], versions[self._wired] = self._wire, self._wire._version
        self._marks = grads, versions

    def check(self, step: int) -> Marks:
        """Refuse to go on if somebody else has touched a gradient; take the trip wire away. What is there now."""
        (grads, versions), (known, seen) = marks_of(self._params), self._marks
        if not all(map(is_, grads, known)):
            self._refuse([now is not before for now, before in zip(grads, known, strict=True)], step)
        if versions != seen:
            self._refuse([now != before for now, before in zip(versions, seen, strict=True)], step)
        self._marks = self._bare  # known again at the pass's end; until then whoever sums them may free them
        if grads[self._wired] is self._wire:
            self._params[self._wired].grad = None
            grads[self._wired], versions[self._wired] = None, -1
        return grads, versions

    def _refuse(self, changed: list[bool], step: int) -> None:
        raise UsageError(
            f"the gradient of {self._names[changed.index(True)]!r} was changed outside job.backward in step {step}: "
            "clip with job.clip_grad_norm_(...), and add further losses to the one given to job.backward(loss)"
        )


def _versions(grads: Grads) -> list[int]:
    return [-1 if grad is None else grad._version for grad in grads]
