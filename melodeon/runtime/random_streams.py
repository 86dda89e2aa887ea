"""The random numbers of virtual workers.

`tree`: a virtual worker's streams in a step are seeded from (seed, step, virtual rank), so there is nothing to carry,
move or save. Code that runs once per worker (the update, evaluation between epochs) draws from a stream of the step
alone.

`ddp`: as in V processes of stock PyTorch, every virtual worker's generators run on from step to step.
"""

import hashlib
import importlib
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from melodeon.core.streams import derive


@dataclass(frozen=True, slots=True)
class Generators:
    """The states of all generators of this process."""

    python: tuple[Any, ...]
    torch_cpu: torch.Tensor
    numpy: dict[str, Any] | None
    device: torch.Tensor | None

    def digest(self) -> int:
        """A non-negative 62-bit number for comparing states between workers."""
        hashed = hashlib.blake2b(repr(self.python).encode(), digest_size=8)
        hashed.update(self.torch_cpu.numpy().tobytes())
        if self.numpy is not None:
            key, *rest = _numpy_values(self.numpy)
            hashed.update(key.tobytes() + repr(rest).encode())
        if self.device is not None:
            hashed.update(self.device.numpy().tobytes())
        return int.from_bytes(hashed.digest(), "little") >> 2

    def to_plain(self) -> dict[str, Any]:
        """The states as values that JSON can hold."""
        version, words, gauss = self.python
        numpy = self.numpy
        return {
            "python": [version, list(words), gauss],
            "torch": self.torch_cpu.numpy().tobytes().hex(),
            "numpy": None
            if numpy is None
            else [numpy["state"]["key"].tolist(), numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]],
            "device": None if self.device is None else self.device.numpy().tobytes().hex(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Generators":
        """Read `to_plain` back."""
        version, words, gauss = plain["python"]
        numpy = None
        if plain["numpy"] is not None:
            module = importlib.import_module("numpy")
            key, pos, has_gauss, cached = plain["numpy"]
            state = {"key": module.array(key, dtype=module.uint32), "pos": pos}
            numpy = {"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": cached}
        device = plain["device"]
        return cls(
            python=(version, tuple(words), gauss),
            torch_cpu=_from_hex(plain["torch"]),
            numpy=numpy,
            device=None if device is None else _from_hex(device),
        )

    def same(self, other: "Generators") -> bool:
        """Whether both would draw the same numbers."""
        return (
            self.python == other.python
            and torch.equal(self.torch_cpu, other.torch_cpu)
            and _same_numpy(self.numpy, other.numpy)
            and (self.device is None or other.device is None or torch.equal(self.device, other.device))
        )


def _same_numpy(a: dict[str, Any] | None, b: dict[str, Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    (key_a, *rest_a), (key_b, *rest_b) = _numpy_values(a), _numpy_values(b)
    return bool((key_a == key_b).all()) and rest_a == rest_b


def _numpy_values(state: dict[str, Any]) -> tuple[Any, int, int, float]:
    """Key, position, and the second normal number of a pair, which is handed out without moving the position."""
    has_gauss = int(state["has_gauss"])
    return state["state"]["key"], int(state["state"]["pos"]), has_gauss, float(state["gauss"]) if has_gauss else 0.0


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed python, numpy (where it is loaded), torch and this worker's device."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed visits every backend and costs 140 times as much.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def read_generators(device: torch.device) -> Generators:
    """The states now."""
    numpy = sys.modules.get("numpy")
    return Generators(
        python=random.getstate(),
        torch_cpu=torch.default_generator.get_state(),
        numpy=numpy.random.get_state(legacy=False) if numpy is not None else None,
        device=torch.cuda.default_generators[device.index].get_state() if device.type == "cuda" else None,
    )


def write_generators(state: Generators, device: torch.device) -> None:
    """Go on from these states."""
    random.setstate(state.python)
    torch.default_generator.set_state(state.torch_cpu)
    if state.numpy is not None and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state.numpy)
    if state.device is not None and device.type == "cuda":
        torch.cuda.default_generators[device.index].set_state(state.device)


class DerivedStreams:
    """`order="tree"`: every stream is named, none is carried."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device

    def enter(self, step: int, rank: int) -> None:
        """Seed from (seed, step, virtual rank)."""
        seed_all(derive(self._seed, "virtual worker", step, rank), self._device)

    def leave(self, rank: int) -> None:
        """Nothing is kept."""

    def fingerprint(self) -> int:
        """Nothing is carried, so nothing can differ."""
        return 0

    def commit(self, step: int, *, agreed: bool) -> None:  # noqa: ARG002  # nothing is carried that could disagree
        """One stream for the update, whoever computes it."""
        seed_all(derive(self._seed, "update", step), self._device)

    def outside(self, step: int) -> None:
        """One stream for what follows the step, whoever runs it and however the run was resumed."""
        seed_all(derive(self._seed, "outside", step), self._device)


class CarriedStreams:
    """`order="ddp"`: one set of generators per virtual worker, as in V processes.

    Stock processes that drew equally often hold equal states, and then code outside the virtual workers (the update, an
    evaluation) moves all of them alike: that is reproduced. Where they have drawn differently no single process can
    stand for all of them; such code then draws from a stream of the step, and the virtual workers' own are left alone.
    """

    def __init__(self, seed: int, device: torch.device, ranks: range, *, virtual_workers: int | None = None) -> None:
        self._seed = seed
        self._device = device
        self._ranks = ranks
        self._held = ranks if virtual_workers is None else range(virtual_workers)
        """Whose states are kept here: the local virtual workers', or all, so that any worker may be lost."""
        self._states: dict[int, Generators] = {}
        self._before: dict[int, Generators] = {}
        """The states that the step in progress began with."""
        self._shared = True
        """Whether the process's generators now stand for every virtual worker's."""

    def enter(self, step: int, rank: int) -> None:  # noqa: ARG002  # the streams themselves know how far they are
        """Take up the virtual worker's generators."""
        if self._shared:
            self._adopt()
        if rank == self._ranks[0]:
            self._before = dict(self._states)
        write_generators(self._states[rank], self._device)

    def leave(self, rank: int) -> None:
        """Lay them down."""
        self._states[rank] = read_generators(self._device)

    def fingerprint(self) -> int:
        """A number that two workers share if all their virtual workers' states are equal; -1 if they differ here."""
        states = [self._states[rank] for rank in self._ranks]
        return states[0].digest() if all(states[0].same(other) for other in states[1:]) else -1

    @property
    def replicated(self) -> bool:
        """Whether every virtual worker's states are kept here."""
        return len(self._held) > len(self._ranks)

    def local(self) -> dict[int, Generators]:
        """The states that this worker's own virtual workers have come to."""
        return {rank: self._states[rank] for rank in self._ranks}

    def learn(self, states: Mapping[int, Generators]) -> None:
        """Keep what other workers' virtual workers have come to."""
        self._states |= states

    def give_up(self) -> None:
        """The step is run again: go back to where it began."""
        self._states = dict(self._before)
        self._shared = False

    def reassign(self, ranks: range) -> None:
        """Run other virtual workers from here on."""
        self._ranks = ranks

    def commit(self, step: int, *, agreed: bool) -> None:
        """Stand for all virtual workers if all are equal (`agreed`), else draw from a stream of the step."""
        self._shared = agreed
        if agreed:
            self._states = dict.fromkeys(self._held, self._states[self._ranks[0]])
            write_generators(self._states[self._ranks[0]], self._device)
        else:
            seed_all(derive(self._seed, "update", step), self._device)

    def outside(self, step: int) -> None:
        """What follows the steps goes on as the update did."""
        if not self._shared:
            seed_all(derive(self._seed, "outside", step), self._device)

    def draw_loader_seed(self) -> None:
        """A stock DataLoader draws one number from its process's generator when an epoch starts."""
        if self._shared:
            torch.empty((), dtype=torch.int64).random_()
            return
        for rank, state in self._states.items():
            write_generators(state, self._device)
            torch.empty((), dtype=torch.int64).random_()
            self._states[rank] = read_generators(self._device)

    def capture(self) -> dict[int, Generators]:
        """The states that are kept here, at a step's boundary."""
        if self._shared:
            self._adopt(keep_shared=True)
        return dict(self._states)

    def restore(self, states: Mapping[int, Generators], step: int) -> None:
        """Go on from a boundary: `states` are those of all virtual workers."""
        self._states = {rank: states[rank] for rank in self._held}
        everyone = list(states.values())
        self.commit(step, agreed=all(everyone[0].same(other) for other in everyone[1:]))
        self.outside(step)

    def _adopt(self, *, keep_shared: bool = False) -> None:
        self._states = dict.fromkeys(self._held, read_generators(self._device))
        self._shared = keep_shared
