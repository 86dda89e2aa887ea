"""How the gradients of many parameters lie in few flat buffers, so that few large messages carry them.

`tree` sums element by element, so its buckets are free to be cut for speed; `ddp` must cut exactly as stock
DistributedDataParallel does, because gloo's order of summation depends on an element's place in its bucket.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed import _compute_bucket_assignment_by_size as _cut_by_size  # type: ignore[attr-defined]

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small so that the exchange starts early."""
BUCKET_BYTES = 25 << 20
_ALIGN = 16
"""Elements; parameters start on cache lines in our own layout."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter's gradient lies in its bucket."""

    index: int
    """The parameter's position among the reduced ones."""
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The gradient as a view of the bucket, in the parameter's own memory layout."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Slots of one dtype and device, and the length of the flat buffer that holds them."""

    slots: tuple[Slot, ...]
    numel: int
    dtype: torch.dtype
    device: torch.device

    @property
    def indices(self) -> tuple[int, ...]:
        """The parameters in this bucket."""
        return tuple(slot.index for slot in self.slots)


def tree_buckets(params: Sequence[torch.Tensor]) -> tuple[Bucket, ...]:
    """Buckets in the order in which a backward pass is likely to fill them: last parameters first."""
    groups: list[list[int]] = []
    open_group: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    size: dict[int, int] = {}
    for index in reversed(range(len(params))):
        param = params[index]
        key = (param.dtype, param.device)
        group = open_group.get(key)
        if group is None:
            group = open_group[key] = []
            groups.append(group)
            size[id(group)] = 0
        group.append(index)
        size[id(group)] += param.numel() * param.element_size()
        limit = FIRST_BUCKET_BYTES if group is groups[0] else BUCKET_BYTES
        if size[id(group)] >= limit:
            del open_group[key]
    return tuple(_bucket(params, group, align=_ALIGN) for group in groups)


def ddp_buckets(
    params: Sequence[torch.Tensor], models: Sequence[Sequence[int]], arrival: Sequence[int] | None, *, find_unused: bool
) -> tuple[Bucket, ...]:
    """The buckets of stock DistributedDataParallel, which wraps each of `models` (the indices of its parameters) apart.

    Before anything is known of the arrival order (the first step) it uses one bucket per dtype; then buckets in the
    order in which rank 0's gradients arrived, small one first. With `find_unused_parameters=True` it cuts once, by
    size, and keeps that.
    """
    sizes = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    groups: list[list[int]] = []
    for model in models:
        early = arrival is None or find_unused
        ordered = list(model) if early else [index for index in arrival or () if index in set(model)]
        limits = [sys.maxsize] if early and not find_unused else sizes
        cut, _ = _cut_by_size([params[index] for index in ordered], limits, [])
        groups += [[ordered[place] for place in group] for group in (reversed(cut) if early else cut)]
    return tuple(_bucket(params, group, align=1) for group in groups)


def _bucket(params: Sequence[torch.Tensor], group: Sequence[int], *, align: int) -> Bucket:
    slots: list[Slot] = []
    offset = 0
    for index in group:
        param = params[index]
        slots.append(Slot(index, offset, param.shape, _layout(param)))
        offset += -(-param.numel() // align) * align
    first = params[group[0]]
    return Bucket(tuple(slots), offset, first.dtype, first.device)


def _layout(param: torch.Tensor) -> tuple[int, ...]:
    """The strides autograd gives this parameter's gradient: its own where they are dense, else contiguous."""
    dense = torch.empty_like(param, memory_format=torch.preserve_format, device="meta")
    return dense.stride()
