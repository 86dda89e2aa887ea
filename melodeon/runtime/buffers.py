"""Buffers such as BatchNorm's, by DDP's rule: every virtual worker starts a step from the same ones, virtual rank 0's remain.

A large buffer that nobody wrote costs nothing: autograd's version counter tells. Small floating-point ones are always copied,
because the kernels of batch normalisation write running statistics behind that counter.
"""

from collections.abc import Mapping, Sequence

import torch

from melodeon.runtime.group import Group


_SMALL = 1 << 16
"""Elements; running statistics have one per channel."""


class Buffers:
    """The buffers of all wrapped models."""

    def __init__(self, modules: Sequence[torch.nn.Module], group: Group, owner: int) -> None:
        self._group = group
        self._owner = owner
        """The worker that runs virtual rank 0."""
        seen: set[int] = set()
        self._places: list[tuple[torch.nn.Module, str]] = []
        for module in modules:
            for child in module.modules():
                for key, buffer in child._buffers.items():
                    if buffer is not None and id(buffer) not in seen:
                        seen.add(id(buffer))
                        self._places.append((child, key))
        self._silent = {i for i, b in enumerate(self._now()) if b.is_floating_point() and b.numel() <= _SMALL}
        """Buffers that may be written without a trace."""
        self._start: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._kept: dict[int, torch.Tensor] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take what the buffers hold now as the state that the next step starts from."""
        self._start = [buffer.detach().clone() for buffer in self._now()]
        self._versions = [buffer._version for buffer in self._now()]
        self._kept = {}

    def enter(self) -> None:
        """Give the next virtual worker the buffers that the step started from."""
        self._write({index: self._start[index] for index in self._written()})

    def leave(self, rank: int) -> None:
        """Keep what virtual rank 0 made of them."""
        if rank == 0:
            self._kept = {index: self._now_at(index).detach().clone() for index in self._written()}

    def kept_bytes(self) -> int:
        """Size of what virtual rank 0 changed; 0 on workers that do not run it."""
        return sum(buffer.numel() * buffer.element_size() + 8 for buffer in self._kept.values())

    def commit(self, nbytes: int) -> None:
        """Make virtual rank 0's buffers everybody's; `nbytes` is its `kept_bytes()`."""
        if nbytes and self._group.size > 1:
            self._spread(nbytes)
        self._write({index: self._kept.get(index, self._start[index]) for index in {*self._written(), *self._kept}})
        for index, buffer in self._kept.items():
            self._start[index] = buffer
        self._kept = {}

    def _write(self, values: Mapping[int, torch.Tensor]) -> None:
        if values:
            targets = [self._now_at(index) for index in values]
            with torch.no_grad():
                torch._foreach_copy_(targets, list(values.values()))
            for index, target in zip(values, targets, strict=True):
                self._versions[index] = target._version

    def _spread(self, nbytes: int) -> None:
        """One message: for each changed buffer its index as eight bytes, then its bytes."""
        message = torch.empty(nbytes, dtype=torch.uint8)
        if self._group.rank == self._owner:
            parts = []
            for index, buffer in self._kept.items():
                parts += [torch.tensor([index]).view(torch.uint8), _as_bytes(buffer).cpu()]
            message = torch.cat(parts)
        self._group.broadcast(message, self._owner)
        if self._group.rank != self._owner:
            offset = 0
            while offset < nbytes:
                index = int(message[offset : offset + 8].clone().view(torch.int64))
                like = self._start[index]
                size = like.numel() * like.element_size()
                body = message[offset + 8 : offset + 8 + size].clone()
                self._kept[index] = body.view(like.dtype).view(like.shape).to(like.device)
                offset += 8 + size

    def _now(self) -> list[torch.Tensor]:
        return [self._now_at(index) for index in range(len(self._places))]

    def _now_at(self, index: int) -> torch.Tensor:
        module, key = self._places[index]
        buffer = module._buffers[key]
        assert buffer is not None
        return buffer

    def _written(self) -> list[int]:
        return [
            index
            for index, buffer in enumerate(self._now())
            if index in self._silent or buffer._version != self._versions[index]
        ]


def _as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.contiguous().view(-1).view(torch.uint8)
