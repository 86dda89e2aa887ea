"""What an operator read and wrote, as short strings: `f32[32,10]#9f8e03c2a1b4d576`, or the `repr` of a plain argument.

Contents count, addresses and strides don't. Memory that nobody has written yet has no contents: it reads
`f32[32,10]#-`, and so does an argument that its operator overwrites without reading.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from melodeon.runtime.digest import digest_tensor

SAMPLE = 8
"""Values kept of a floating output, so that the size of a difference can be told as well as its place."""
DIGEST = 16
"""Hex digits kept of a digest: records are only compared place by place, where 64 bits are plenty."""

# In-place operators that never read what they write over.
_OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}
    | {"normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_"}
)
# Operators that write into arguments their schema does not mark: the running statistics.
_UNMARKED_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
# Outputs that may hold memory nobody wrote: random states of attention without dropout, padded or reserved space.
_UNDEFINED_OUTPUTS = {
    "_scaled_dot_product_flash_attention": (2, 3, 6, 7, 8),
    "_scaled_dot_product_efficient_attention": (1, 2, 3),
    "_scaled_dot_product_cudnn_attention": (2, 3, 6, 7, 8),
    "_flash_attention_forward": (2, 3, 4),
    "_efficient_attention_forward": (1, 2, 3),
    "cudnn_batch_norm": (3,),
    "_cudnn_rnn": (3, 4),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}


Named = Mapping[int, tuple[str, torch.Tensor]]
"""Known tensors by the address of their data, with their names."""


class Inputs(NamedTuple):
    """What a call reads: one string a value, the known names by position, and the tensors that it will write into."""

    values: list[str]
    names: dict[int, str]
    written: list[torch.Tensor]


class Outputs(NamedTuple):
    """What a call gave: one string a value, and a few numbers of each floating tensor (None for the others)."""

    values: list[str]
    sample: list[list[float | str] | None]


class Values:
    """Describes inputs and outputs, knowing which memory has never been written."""

    def __init__(self) -> None:
        # Keyed by the address of the storage's head, which the weak reference keeps from being reused.
        self._unwritten: dict[int, StorageWeakRef] = {}

    def forget_dead(self) -> None:
        """Drop what is known of storages that are gone."""
        self._unwritten = {key: ref for key, ref in self._unwritten.items() if not ref.expired()}  # type: ignore[no-untyped-call]  # torch types none of it

    def allocated(self, result: Any) -> None:
        """Take note of fresh memory without contents."""
        for tensor in _tensors(result):
            if _has_storage(tensor):
                ref = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # as above
                self._unwritten[ref.cdata] = ref

    def inputs(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Named) -> Inputs:
        """Describe what `func` is about to read; call it before `func` runs."""
        found = Inputs([], {}, [])
        base = func._schema.name.partition("::")[2]
        unmarked = _UNMARKED_WRITES.get(base, ())
        for position, (argument, key, value) in enumerate(_bind(func, args, kwargs)):
            writes = (argument is not None and argument.is_write) or position in unmarked
            unread = writes and (base in _OVERWRITES or argument.is_out)
            for leaf in _leaves(value):
                if isinstance(leaf, torch.Tensor):
                    if name := names.get(leaf.data_ptr() if _has_storage(leaf) else 0):
                        found.names[len(found.values)] = name[0]
                    if writes:
                        found.written.append(leaf)
                    leaf_text = f"{_shape(leaf)}#-" if unread else self._tensor(leaf)
                else:
                    leaf_text = _plain(leaf)
                found.values.append(f"{key}={leaf_text}" if key else leaf_text)
        return found

    def outputs(self, func: Any, result: Any, written: list[torch.Tensor]) -> Outputs:
        """Describe what `func` gave and what it left in the arguments it wrote into."""
        undefined = _UNDEFINED_OUTPUTS.get(func._schema.name.partition("::")[2], ())
        if undefined:
            self.allocated([result[position] for position in undefined if position < len(result)])
        leaves = [leaf for leaf in _leaves(result) if leaf is not None]
        for tensor in written:
            if not any(leaf is tensor for leaf in leaves):
                leaves.append(tensor)
        found = Outputs([], [])
        if self._unwritten and not undefined:
            for tensor in _tensors(leaves):
                if _has_storage(tensor):
                    self._unwritten.pop(tensor.untyped_storage()._cdata, None)
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                local = _local(leaf)
                found.values.append(self._tensor(leaf, local))
                found.sample.append(_sample(local))
            else:
                found.values.append(_plain(leaf))
                found.sample.append(None)
        return found

    def _tensor(self, tensor: torch.Tensor, local: torch.Tensor | None = None) -> str:
        local = _local(tensor) if local is None else local
        if local is None or (self._unwritten and tensor.untyped_storage()._cdata in self._unwritten):
            return f"{_shape(tensor)}#-"
        return f"{_shape(tensor)}#{digest_tensor(local)[:DIGEST]}"


def _bind(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    schema = func._schema.arguments
    for argument, value in zip(schema, args, strict=False):
        yield argument, "", value
    by_name = {argument.name: argument for argument in schema[len(args) :]}
    for key in sorted(kwargs):
        yield by_name.get(key), key, kwargs[key]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        if value and not any(isinstance(leaf, torch.Tensor | list | tuple) for leaf in value):
            yield value  # a list of plain numbers reads better whole
            return
        for leaf in value:
            yield from _leaves(leaf)
    else:
        yield value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor))


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def _local(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's contents on the CPU, dense; None where it has none."""
    if tensor.device.type == "meta":
        return None
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg()


def _shape(tensor: torch.Tensor) -> str:
    dtype = _SHORT.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, tensor.shape))}]"


def _plain(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "generator"
    return _ADDRESS.sub("", repr(value))


def _sample(tensor: torch.Tensor | None) -> list[float | str] | None:
    if tensor is None or not tensor.is_floating_point() or not tensor.numel():
        return None
    flat = tensor.reshape(-1)
    picked = flat[:: -(-flat.numel() // SAMPLE)].double().tolist()
    # JSON has no word for these
    return [value if abs(value) < float("inf") else repr(value) for value in picked]
