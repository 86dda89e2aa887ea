"""Buffers such as BatchNorm's, by DDP's rule: each virtual worker starts a step from the same ones, rank 0's remain.

A large buffer that nobody wrote costs nothing: autograd's version counter tells, and a tensor put in a buffer's place
is another object. Small floating-point ones are always copied, because the kernels of batch normalisation write running
statistics behind that counter. What a script does to buffers between the steps stays, as it does in a plain loop.
"""

from collections.abc import Mapping, Sequence

import torch

from melodeon.core.errors import UsageError
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
        self._names: list[str] = []
        for module in modules:
            for path, child in module.named_modules():
                for key, buffer in child._buffers.items():
                    if buffer is not None and id(buffer) not in seen:
                        seen.add(id(buffer))
                        self._places.append((child, key))
                        self._names.append(f"{path}.{key}" if path else key)
        self._silent = {i for i, b in enumerate(self._now()) if b.is_floating_point() and b.numel() <= _SMALL}
        """Buffers that may be written without a trace."""
        self._start: list[torch.Tensor] = []
        self._home: list[torch.Tensor] = []
        """The tensors that were the modules' buffers when the step began."""
        self._versions: list[int] = []
        self._kept: dict[int, torch.Tensor] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take what the buffers hold now as the state that the next step starts from."""
        self._home = self._now()
        self._start = [buffer.detach().clone() for buffer in self._home]
        self._versions = [buffer._version for buffer in self._home]
        self._kept = {}

    def begin_step(self) -> None:
        """The first local virtual worker starts from what is there, the script's own changes included."""
        for index in self._written():
            buffer = self._now_at(index)
            self._home[index], self._versions[index] = buffer, buffer._version
            self._start[index] = buffer.detach().clone()

    def enter(self) -> None:
        """Give the next virtual worker the buffers that the step started from."""
        self._write({index: self._start[index] for index in self._written()})

    def leave(self, rank: int) -> None:
        """Keep what virtual rank 0 made of them."""
        if rank == 0:
            self._kept = {index: self._now_at(index).detach().clone() for index in self._written()}
            for index, buffer in self._kept.items():
                start = self._start[index]
                if (buffer.shape, buffer.dtype) != (start.shape, start.dtype):
                    raise UsageError(
                        f"buffer {self._names[index]!r} went from {start.dtype} {tuple(start.shape)} to {buffer.dtype} "
                        f"{tuple(buffer.shape)} in a step: a buffer must keep its type and shape, so make it large "
                        "enough at first"
                    )

    def kept_bytes(self) -> int:
        """Size of what virtual rank 0 changed; 0 on workers that do not run it."""
        return sum(buffer.numel() * buffer.element_size() + 8 for buffer in self._kept.values())

    def commit(self, nbytes: int) -> None:
        """Make virtual rank 0's buffers everybody's; `nbytes` is its `kept_bytes()`."""
        if nbytes and self._group.size > 1:
            self._spread(nbytes)
        self._write({index: self._kept.get(index, self._start[index]) for index in {*self._written(), *self._kept}})
        self._start = [self._kept.get(index, start) for index, start in enumerate(self._start)]
        self._kept = {}

    def drop(self) -> None:
        """The step is left out: go back to the buffers that it started from."""
        self._kept = {}
        self.enter()

    def _write(self, values: Mapping[int, torch.Tensor]) -> None:
        if values:
            targets = [self._home[index] for index in values]
            with torch.no_grad():
                torch._foreach_copy_(targets, list(values.values()))
            for index, target in zip(values, targets, strict=True):
                module, key = self._places[index]
                module._buffers[key] = target
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
        buffer = module._buffers.get(key)
        if buffer is None:
            raise UsageError(
                f"buffer {self._names[index]!r} was taken away during the run: a model must keep its buffers"
            )
        return buffer

    def _written(self) -> list[int]:
        return [
            index
            for index, buffer in enumerate(self._now())
            if index in self._silent or buffer is not self._home[index] or buffer._version != self._versions[index]
        ]


def _copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy pairwise, one call a dtype: a mixed list makes torch copy tensor by tensor."""
    by_dtype: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = by_dtype.setdefault(target.dtype, ([], []))
        into.append(target)
        out_of.append(source)
    with torch.no_grad():
        for into, out_of in by_dtype.values():
            torch._foreach_copy_(into, out_of)


def _as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.contiguous().view(-1).view(torch.uint8)
