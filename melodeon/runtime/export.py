"""A checkpoint's model as a plain file that needs nothing of ours to be loaded.

`.pt` is `torch.save` of a dict of names and tensors (`torch.load` takes it with `weights_only=True`); `.safetensors` is
an 8-byte little-endian length, a JSON header and the raw data. Only the model's state_dict, or one registered object's,
is taken: optimizers and the position in the data stay in the checkpoint.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises; nothing is unpickled here
from typing import BinaryIO

import torch

from melodeon.core.errors import CheckpointError, MelodeonError, NotFound, UsageError
from melodeon.runtime.checkpoint import Checkpoint, CheckpointFolder, read_checkpoint
from melodeon.runtime.codec import flatten, join_path, view_bytes

_SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and from where."""

    output: Path
    checkpoint: Path
    step: int
    num_tensors: int
    notes: tuple[str, ...]
    """A sentence about each newer checkpoint that was refused."""


def export_state_dict(
    source: str | Path, output: str | Path, *, model_key: str | None = None, registered: str | None = None
) -> Exported:
    """Write the state_dict of a checkpoint (a file, or the newest good one of a folder) to `output`.

    `model_key` picks one of several models; `registered` takes an object given to `job.register` instead.
    """
    output = Path(output)
    writer = _writer_for(output)
    if model_key is not None and registered is not None:
        raise UsageError(
            f"model {model_key!r} and registered {registered!r} cannot both be exported to one file: give one"
        )
    checkpoint, notes = _find(Path(source))
    state = _select(checkpoint, model_key, registered)
    _, tensors = flatten(state)
    _replace(output, lambda file: writer(state, file))
    return Exported(output, checkpoint.path, checkpoint.step, len(tensors), tuple(notes))


def write_safetensors(state: Mapping[str, object], file: BinaryIO) -> None:
    """Write nested dicts of tensors as safetensors, names joined with dots; anything else is refused by name."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in _leaves(state).items():
        if not isinstance(value, torch.Tensor) or value.dtype not in _SAFETENSORS_DTYPES or name == "__metadata__":
            kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise UsageError(f"{name} ({kind}) has no place in a .safetensors file: export to a .pt file instead")
        tensors[name] = value.contiguous()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    # Wide elements first: holes aren't allowed, and so every tensor still starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        file.write(view_bytes(tensor))


def _write_pt(state: Mapping[str, object], file: BinaryIO) -> None:
    torch.save(dict(state), file)
    file.flush()
    try:
        torch.load(file.name, mmap=True, weights_only=True)
    except UnpicklingError as error:
        raise UsageError(
            "the state holds values that torch.load refuses with weights_only=True, such as numpy arrays: "
            "keep tensors and plain values in the object's state_dict()"
        ) from error


def _writer_for(output: Path) -> Callable[[Mapping[str, object], BinaryIO], None]:
    writers = {".pt": _write_pt, ".safetensors": write_safetensors}
    if output.suffix not in writers:
        raise UsageError(f"output {output} must end in .pt or .safetensors, which says the format to write")
    if not output.parent.is_dir():
        raise NotFound(f"folder {output.parent} of output {output.name} is not there: create it first")
    return writers[output.suffix]


def _find(source: Path) -> tuple[Checkpoint, list[str]]:
    if not source.exists():
        raise NotFound(f"checkpoint {source} is not there: give a .melodeon file or the folder that holds them")
    if not source.is_dir():
        return read_checkpoint(source), []
    checkpoint, refused = CheckpointFolder(source).newest_good()
    if checkpoint is not None:
        return checkpoint, refused
    if refused:
        raise CheckpointError(f"no checkpoint in {source} can be used: {'; '.join(refused)}")
    raise NotFound(f"folder {source} holds no checkpoint (step-*.melodeon): give the folder passed to job.checkpoint")


def _select(checkpoint: Checkpoint, model_key: str | None, registered: str | None) -> dict[str, object]:
    group, key, option = "models", model_key, "--model"
    if registered is not None:
        group, key, option = "registered", registered, "--registered"
    found = checkpoint.state.get(group) if isinstance(checkpoint.state, dict) else None
    if not isinstance(found, dict) or not found:
        raise UsageError(f"checkpoint {checkpoint.path} holds no {group}: export one that does")
    choices = [str(name) for name in found]
    if key is None and len(choices) > 1:
        raise UsageError(
            f"checkpoint {checkpoint.path} holds {len(choices)} models: choose --model {' or '.join(choices)}"
        )
    key = choices[0] if key is None else key
    if key not in found:
        raise UsageError(f"{option} {key} is not in {checkpoint.path}: it holds {', '.join(choices)}")
    state = found[key]
    if not isinstance(state, dict):
        raise UsageError(f"{option} {key} is of type {type(state).__name__} and only a state_dict can be exported")
    return state


def _leaves(state: Mapping[str, object], path: str = "") -> dict[str, object]:
    leaves: dict[str, object] = {}
    for key, value in state.items():
        name = join_path(path, key)
        inner = _leaves(value, name) if isinstance(value, dict) else {name: value}
        if double := leaves.keys() & inner.keys():
            raise UsageError(
                f"two values of the state would both be called {min(double)}: export to a .pt file instead"
            )
        leaves.update(inner)
    return leaves


def _replace(output: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside `output` and rename: a failure leaves what was there."""
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise MelodeonError(
            f"output {output} cannot be written ({error.strerror or error}): make room or choose another place"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
