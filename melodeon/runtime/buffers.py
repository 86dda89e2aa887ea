"""Buffers such as BatchNorm's, by DDP's rule: each virtual worker starts a step from the same ones, rank 0's remain.

A large buffer that nobody wrote costs nothing: autograd's version counter tells, and a tensor put in a buffer's place
is another object. Small floating-point ones are always copied, because the kernels of batch normalisation write running
statistics behind that counter. What else is written behind it (`buffer.data`, as by a codebook's moving average) shows
in a worker's first steps, where values are compared, and is copied from then on. What a script does to buffers between
the steps stays, as it does in a plain loop.
"""

from collections import Counter
from collections.abc import Sequence
from operator import is_

import torch

from melodeon.core.errors import UsageError
from melodeon.runtime.group import Group
from melodeon.runtime.guard import FIRST_STEPS

_SMALL = 1 << 16
"""Elements; running statistics have one per channel."""

Copies = list[tuple[list[torch.Tensor], list[torch.Tensor]]]
"""Into what and out of what, one pair of lists a dtype."""


class Buffers:
    """The buffers of all wrapped models."""

    def __init__(self, modules: Sequence[torch.nn.Module], group: Group, owner: int) -> None:
        self._group = group
        self._owner = owner
        """The worker that runs virtual rank 0."""
        seen: set[int] = set()
        self._tables: list[dict[str, torch.Tensor | None]] = []
        self._keys: list[str] = []
        self._names: list[str] = []
        for module in modules:
            for path, child in module.named_modules():
                for key, buffer in child._buffers.items():
                    if buffer is not None and id(buffer) not in seen:
                        seen.add(id(buffer))
                        self._tables.append(child._buffers)
                        self._keys.append(key)
                        self._names.append(f"{path}.{key}" if path else key)
        self._home: list[torch.Tensor] = []
        """The tensors that were the modules' buffers when the step began."""
        silent = [b.is_floating_point() and b.numel() <= _SMALL for b in self._now()]
        self._silent = [index for index, may in enumerate(silent) if may]
        """The buffers that may be written without a trace."""
        self._loud = [index for index, may in enumerate(silent) if not may]
        """Those whose version counter tells, as far as is known."""
        self._steps = 0
        """How many have begun here."""
        self._start: list[torch.Tensor] = []
        self._spare: dict[int, torch.Tensor] = {}
        """Memory for what virtual rank 0 leaves: it and `_start` change places at every commit."""
        self._versions: list[int] = []
        self._kept: dict[int, torch.Tensor] = {}
        self._rewind: tuple[list[int], Copies] = ([], [])
        """The buffers that the last virtual worker wrote, and the copies that undo it: mostly the same ones again."""
        self.refresh()

    def refresh(self) -> None:
        """Take what the buffers hold now as the state that the next step starts from."""
        self._home = self._now()
        self._start = [buffer.detach().clone() for buffer in self._home]
        self._spare = {}
        self._versions = [buffer._version for buffer in self._home]
        self._kept = {}
        self._rewind = ([], [])

    def reassign(self, group: Group, owner: int) -> None:
        """Another view: the worker that runs virtual rank 0 may be another."""
        self._group, self._owner = group, owner
        self._kept = {}

    def begin_step(self) -> None:
        """The first local virtual worker starts from what is there, the script's own changes included."""
        self._steps += 1
        now = self._now()
        written = self._written(now)
        for index in written:
            self._check(index, now[index])
            self._home[index], self._versions[index] = now[index], now[index]._version
        self._rewind = ([], [])
        _copy_all(_by_dtype([self._start[index] for index in written], [now[index] for index in written]))

    def enter(self) -> None:
        """Give the next virtual worker the buffers that the step started from."""
        now = self._now()
        written = self._written(now)
        if written != self._rewind[0]:
            self._rewind = (written, _by_dtype([self._home[i] for i in written], [self._start[i] for i in written]))
        _copy_all(self._rewind[1])
        self._take_back(now, written)

    def leave(self, rank: int) -> None:
        """Keep what virtual rank 0 made of them."""
        if rank == 0:
            now = self._now()
            written = self._written(now)
            for index in written:
                self._check(index, now[index])
            self._kept = {index: self._spare_for(index) for index in written}
            _copy_all(_by_dtype(list(self._kept.values()), [now[index] for index in written]))

    def _spare_for(self, index: int) -> torch.Tensor:
        if index not in self._spare:
            self._spare[index] = torch.empty_like(self._start[index])
        return self._spare[index]

    def _check(self, index: int, buffer: torch.Tensor) -> None:
        start = self._start[index]
        if buffer.shape != start.shape or buffer.dtype != start.dtype:
            raise UsageError(
                f"buffer {self._names[index]!r} went from {start.dtype} {tuple(start.shape)} to {buffer.dtype} "
                f"{tuple(buffer.shape)} during the run: a buffer must keep its type and shape, so make it large enough "
                "at first"
            )

    def kept_bytes(self) -> int:
        """Size of what virtual rank 0 changed; 0 on workers that do not run it."""
        return sum(buffer.numel() * buffer.element_size() + 8 for buffer in self._kept.values())

    def commit(self, nbytes: int) -> None:
        """Make virtual rank 0's buffers everybody's; `nbytes` is its `kept_bytes()`."""
        if nbytes and self._group.size > 1:
            self._spread(nbytes)
        now = self._now()
        written = sorted({*self._written(now), *self._kept})
        sources = [self._kept.get(index, self._start[index]) for index in written]
        _copy_all(_by_dtype([self._home[index] for index in written], sources))
        self._take_back(now, written)
        for index, kept in self._kept.items():
            self._start[index], self._spare[index] = kept, self._start[index]
        self._kept = {}

    def drop(self) -> None:
        """The step is left out: go back to the buffers that it started from."""
        self._kept = {}
        self.enter()

    def _take_back(self, now: Sequence[torch.Tensor], written: Sequence[int]) -> None:
        """Put the modules' own tensors back in their places, and note them as unwritten."""
        if not all(map(is_, now, self._home)):
            for index in written:
                if now[index] is not self._home[index]:
                    self._tables[index][self._keys[index]] = self._home[index]
        for index in self._loud:
            self._versions[index] = self._home[index]._version

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
                self._kept[index] = self._spare_for(index).copy_(body.view(like.dtype).view(like.shape))
                offset += 8 + size

    def _now(self) -> list[torch.Tensor]:
        now = list(map(dict.get, self._tables, self._keys))
        if not all(map(is_, now, self._home)):
            for name, buffer in zip(self._names, now, strict=True):
                if buffer is None:
                    raise UsageError(f"buffer {name!r} was taken away during the run: a model must keep its buffers")
        return now  # type: ignore[return-value]  # no None is left

    def _written(self, now: Sequence[torch.Tensor]) -> list[int]:
        if self._steps <= FIRST_STEPS:
            self._find_silent(now)
        if all(map(is_, now, self._home)):
            return self._silent + [index for index in self._loud if now[index]._version != self._versions[index]]
        known = zip(now, self._home, self._versions, strict=True)
        silent = set(self._silent)
        return [
            index
            for index, (buffer, home, version) in enumerate(known)
            if index in silent or buffer is not home or buffer._version != version
        ]

    def _find_silent(self, now: Sequence[torch.Tensor]) -> None:
        """Whose values are others, though its counter says nothing, is written without a trace."""
        found = [
            index
            for index in self._loud
            if now[index] is self._home[index]
            and now[index]._version == self._versions[index]
            and not torch.equal(now[index], self._start[index])
        ]
        if found:
            self._silent = sorted([*self._silent, *found])
            self._loud = [index for index in self._loud if index not in found]


def unfold_buffers(model: torch.nn.Module) -> None:
    """Give every element of an expanded buffer a place of its own, as `model.to` does on its way to a GPU.

    Where elements share one, nothing can be copied in: neither what a step started from nor what a newcomer receives.
    A buffer that follows another one whose memory it has is left as it is.
    """
    plain = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.layout == torch.strided]
    held = Counter(tensor.untyped_storage().data_ptr() for tensor in plain)
    unfolded = {id(t): t.contiguous() for t in plain if _is_expanded(t) and held[t.untyped_storage().data_ptr()] == 1}
    for child in model.modules():
        for key, buffer in child._buffers.items():
            if id(buffer) in unfolded:
                child._buffers[key] = unfolded[id(buffer)]


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _by_dtype(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copies:
    """Pairs to copy, one list a dtype: a mixed list makes torch copy tensor by tensor."""
    found: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = found.setdefault(target.dtype, ([], []))
        into.append(target)
        out_of.append(source)
    return list(found.values())


def _copy_all(copies: Copies) -> None:
    with torch.no_grad():
        for into, out_of in copies:
            torch._foreach_copy_(into, out_of)


def _as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.contiguous().view(-1).view(torch.uint8)
