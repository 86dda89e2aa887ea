"""State trees as JSON and named tensors, and back.

A state tree is what `state_dict()`s are made of: nested containers of plain values and tensors. `flatten` splits it
into a structure that JSON can hold and the tensors it refers to by path (`optimizers.0.state.3.exp_avg`); `unflatten`
puts it together again with the same types, the same bits and the same memory layout. No object is ever built by name,
so a hostile structure can at worst be refused. Tensors shared between two places are stored twice.

A node is a plain JSON scalar or list, or an object whose first key is its tag: `{"tuple": [...]}`, `{"dict": [[key,
value], ...]}`, `{"tensor": path}`, ...
"""

import base64
import math
import re
import struct
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Container, Sequence
from types import ModuleType
from typing import Any, TypeAlias, cast

import torch

from melodeon.core.errors import CheckpointError, UsageError
from melodeon.runtime.memory import HUGE_FROM, own_pages, raw_view

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 64
"""Containers within containers; a deeper tree is a cycle or a hostile file."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
"""The element types that can be stored, by name."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FACTORIES: dict[str, type] = {"dict": dict, "list": list, "int": int, "float": float}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
_NUMPY_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")
_JSON_INT = 1 << 63


def flatten(tree: object, *, copy: bool = False, path: str = "") -> tuple[JsonValue, dict[str, torch.Tensor]]:
    """Split `tree` into a JSON structure and its tensors by path (below `path`), on the CPU and contiguous.

    CPU tensors share their memory with the tree unless `copy` asks for a snapshot.
    """
    encoder = _Encoder(copy)
    structure = encoder.value(tree, path, 0)
    return structure, encoder.tensors


def unflatten(structure: JsonValue, tensors: dict[str, torch.Tensor]) -> Any:
    """The tree that `flatten` split, sharing memory with `tensors`; a malformed structure is a CheckpointError."""
    try:
        return _Decoder(tensors).value(structure, 0)
    except (ValueError, TypeError, KeyError, OverflowError, RuntimeError, struct.error) as error:
        raise CheckpointError(
            f"the state's structure is malformed ({error}): it was not written by this version of Melodeon"
        ) from error


def clone_state(tree: object) -> Any:
    """A snapshot of `tree` on the CPU that later training steps don't touch."""
    return unflatten(*flatten(tree, copy=True))


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU. A large one is no part of the heap, which keeps what is freed: a worker that has stored a
    checkpoint would be larger by the whole state for good.
    """
    size = tensor.numel() * tensor.element_size()
    if size < HUGE_FROM:
        return tensor.to("cpu", copy=True)
    strides = torch.empty_like(tensor, device="meta").stride()  # its own where it is dense, else row-major
    room = torch.frombuffer(own_pages(size), dtype=torch.uint8).view(tensor.dtype).as_strided(tensor.shape, strides)
    return room.copy_(tensor)


def join_path(path: str, key: object) -> str:
    """The path of what `key` names inside the container at `path`."""
    return f"{path}.{key}" if path else str(key)


def unique_path(path: str, taken: Container[str]) -> str:
    """`path`, or `path#2` and so on where it is taken: keys with dots, or `1` and `"1"`, may meet in one path."""
    if path not in taken:
        return path
    number = 2
    while f"{path}#{number}" in taken:
        number += 1
    return f"{path}#{number}"


def view_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable and uncopied; valid only while the caller holds the tensor."""
    assert tensor.device.type == "cpu"
    assert tensor.is_contiguous()
    return raw_view(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def check_tensor(tensor: torch.Tensor, path: str) -> None:
    """Refuse a tensor whose elements aren't simply there: sparse, quantized, meta, or of a class of its own."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.dtype not in _DTYPE_NAMES or tensor.device.type == "meta":
        raise _refused(path, tensor, f" ({tensor.dtype}, {tensor.layout}, {tensor.device})")


def dtype_name(dtype: torch.dtype) -> str:
    """The name in `DTYPES` of a supported element type."""
    return _DTYPE_NAMES[dtype]


class _Encoder:
    """One walk over a tree; collects the tensors."""

    def __init__(self, copy: bool) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._copy = copy
        # Nothing can hold a numpy value before somebody has imported numpy.
        numpy = sys.modules.get("numpy")
        self._numpy_types: tuple[type, ...] = () if numpy is None else (numpy.ndarray, numpy.generic)

    def value(self, value: object, path: str, depth: int) -> JsonValue:
        if depth > MAX_DEPTH:
            raise UsageError(
                f"state at {_short(path)!r} is nested more than {MAX_DEPTH} deep: "
                "a state_dict() must be a tree that does not contain itself"
            )
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, dict):
            return self._mapping(value, path, depth)
        if isinstance(value, list | tuple) and kind in (list, tuple, torch.Size):
            parts = [self.value(part, join_path(path, index), depth + 1) for index, part in enumerate(value)]
            return parts if kind is list else {"tuple" if kind is tuple else "size": cast(JsonValue, parts)}
        if isinstance(value, self._numpy_types):
            return self._from_numpy(value, path)
        return self._scalar(value, path)

    def _scalar(self, value: object, path: str) -> JsonValue:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return cast(JsonValue, value)
        if kind is int:
            whole = cast(int, value)
            return whole if -_JSON_INT <= whole < _JSON_INT else {"int": hex(whole)}
        if kind is float:
            number = cast(float, value)
            # repr is exact for finite floats; NaNs carry payload bits that no text form keeps
            return number if math.isfinite(number) else {"float": struct.pack("<d", number).hex()}
        if kind is bytes:
            return {"bytes": base64.b64encode(cast(bytes, value)).decode("ascii")}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        raise _refused(path, value)

    def _mapping(self, mapping: dict[object, object], path: str, depth: int) -> JsonValue:
        items: list[JsonValue] = [
            [self._key(key, path), self.value(value, join_path(path, key), depth + 1)] for key, value in mapping.items()
        ]
        kind = type(mapping)
        if kind is dict:
            return {"dict": items}
        if kind is OrderedDict:
            return {"ordered": items}
        if kind is Counter:
            return {"counter": items}
        if isinstance(mapping, defaultdict) and kind is defaultdict:
            factory = mapping.default_factory
            if factory is None:
                return {"defaultdict": items, "factory": None}
            if isinstance(factory, type) and factory in _FACTORY_NAMES:
                return {"defaultdict": items, "factory": _FACTORY_NAMES[factory]}
        raise _refused(path, mapping)

    def _key(self, key: object, path: str) -> JsonValue:
        if type(key) is tuple:
            return {"tuple": [self._key(part, path) for part in key]}
        if key is not None and type(key) not in (str, int, float, bool):
            raise UsageError(
                f"state at {_short(path)!r} has the key {_short(repr(key))} of type {_type_name(key)}: "
                "use text, numbers, None or tuples of these as keys of a state_dict()"
            )
        return self._scalar(key, path)

    def _tensor(self, value: torch.Tensor, path: str) -> JsonValue:
        check_tensor(value, path)
        plain = value.detach().resolve_conj().resolve_neg()
        tensor = snapshot(plain) if self._copy else plain.to("cpu")
        name = unique_path(path or "state", self.tensors)
        strides = list(tensor.stride())
        if tensor.numel() == 0 or strides == _default_strides(tensor.shape):
            self.tensors[name] = tensor.contiguous()
            return {"tensor": name}
        # Other dense layouts (channels_last) are kept: fused optimizers refuse state laid out unlike its parameter.
        order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
        permuted = tensor.permute(order)
        if not permuted.is_contiguous():
            self.tensors[name] = tensor.contiguous()
            return {"tensor": name}
        self.tensors[name] = permuted
        return {"tensor": name, "order": list(order), "strides": list(strides)}

    def _from_numpy(self, value: Any, path: str) -> JsonValue:
        array_type, scalar_type = self._numpy_types
        is_scalar = isinstance(value, scalar_type)
        if not _NUMPY_DTYPE.fullmatch(value.dtype.str) or not (is_scalar or type(value) is array_type):
            raise _refused(path, value, f" ({value.dtype})")
        if is_scalar:
            return {"numpy": value.dtype.str, "bytes": value.tobytes().hex()}
        name = unique_path(path or "state", self.tensors)
        raw = bytearray(value.tobytes())
        self.tensors[name] = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        return {"ndarray": name, "dtype": value.dtype.str, "shape": list(value.shape)}


class _Decoder:
    """One walk over a structure; whatever does not fit raises a builtin error that `unflatten` explains."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def value(self, node: JsonValue, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, list):
            return [self.value(part, depth + 1) for part in node]
        tag, content = next(iter(node.items()), ("", None))
        match tag:
            case "tuple":
                return tuple(self.value(part, depth + 1) for part in _list(content))
            case "size":
                return torch.Size(_whole_numbers(content))
            case "dict" | "ordered" | "counter" | "defaultdict":
                return self._mapping(tag, node, depth)
            case "tensor":
                return _with_layout(node, self._tensors[_text(content)])
            case "ndarray" | "numpy":
                return self._to_numpy(tag, node)
        return _decode_scalar(tag, _text(content))

    def _mapping(self, tag: str, node: dict[str, JsonValue], depth: int) -> dict[Any, Any]:
        pairs = [_list(pair) for pair in _list(node[tag])]
        items = [(_decode_key(key, 0), self.value(value, depth + 1)) for key, value in pairs]
        match tag:
            case "ordered":
                return OrderedDict(items)
            case "counter":
                return Counter(dict(items))
            case "defaultdict":
                factory = node["factory"]
                return defaultdict(None if factory is None else _FACTORIES[_text(factory)], items)
        return dict(items)

    def _to_numpy(self, tag: str, node: dict[str, JsonValue]) -> Any:
        numpy = _import_numpy()
        name = _text(node["numpy"] if tag == "numpy" else node["dtype"])
        if not _NUMPY_DTYPE.fullmatch(name):
            raise ValueError(f"{name!r} is no element type of an array")
        dtype = numpy.dtype(name)
        if tag == "numpy":
            return numpy.frombuffer(bytes.fromhex(_text(node["bytes"])), dtype).reshape(())[()]
        shape = _whole_numbers(node["shape"])
        raw = view_bytes(self._tensors[_text(node["ndarray"])])
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise ValueError(f"an array of {shape} {name} does not fill {len(raw)} bytes")
        return numpy.frombuffer(bytearray(raw), dtype).reshape(shape)


def _with_layout(node: dict[str, JsonValue], stored: torch.Tensor) -> torch.Tensor:
    """The tensor that a tensor node stands for: `stored` with the dimensions and strides it was captured with."""
    if "order" not in node:
        return stored
    order, strides = _whole_numbers(node["order"]), _whole_numbers(node["strides"])
    if sorted(order) != list(range(stored.dim())) or len(strides) != stored.dim():
        raise ValueError(f"{order} does not order the dimensions of a tensor of {stored.dim()}")
    shape = [stored.shape[order.index(dim)] for dim in range(stored.dim())]
    restored = stored.as_strided(shape, strides)
    # as_strided keeps within the storage, but only a dense layout shows each stored element exactly once.
    if not restored.permute(order).is_contiguous():
        raise ValueError(f"strides {strides} do not fit the shape {shape}")
    return restored


def _decode_scalar(tag: str, content: str) -> Any:
    match tag:
        case "int":
            return int(content, 16)
        case "float":
            return struct.unpack("<d", bytes.fromhex(content))[0]
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "dtype":
            dtype = getattr(torch, content, None)
            if isinstance(dtype, torch.dtype):
                return dtype
            raise ValueError(f"{content!r} is no dtype of this PyTorch")
        case "device":
            return torch.device(content)
    raise ValueError(f"unknown tag {tag!r}")


def _decode_key(node: JsonValue, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"a key nested more than {MAX_DEPTH} deep")
    if isinstance(node, dict):
        tag, content = next(iter(node.items()), ("", None))
        if tag == "tuple":
            return tuple(_decode_key(part, depth + 1) for part in _list(content))
        return _decode_scalar(tag, _text(content))
    if isinstance(node, list):
        raise ValueError("a list as a key")
    return node


def _default_strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def _import_numpy() -> ModuleType:
    try:
        import numpy as np
    except ImportError:
        raise UsageError("the state holds numpy arrays and numpy is not installed here: pip install numpy") from None
    return np


def _list(node: JsonValue) -> list[JsonValue]:
    if not isinstance(node, list):
        raise TypeError(f"a list is needed, not {_short(repr(node))}")
    return node


def _text(node: JsonValue) -> str:
    if not isinstance(node, str):
        raise TypeError(f"text is needed, not {_short(repr(node))}")
    return node


def _whole_numbers(node: JsonValue) -> list[int]:
    numbers = [part for part in _list(node) if type(part) is int and part >= 0]
    if numbers != node:
        raise TypeError(f"whole numbers are needed, not {_short(repr(node))}")
    return numbers


def _refused(path: str, value: object, detail: str = "") -> UsageError:
    return UsageError(
        f"state at {_short(path) or 'its root'!r} is of type {_type_name(value)}{detail}, which a checkpoint "
        "cannot hold: keep tensors, numbers, text, lists and dicts in the state_dict(), or leave it out"
    )


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}...{text[-37:]}"
