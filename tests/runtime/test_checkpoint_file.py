import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from melodeon.core.definition import Definition
from melodeon.core.errors import CheckpointError
from melodeon.runtime.checkpoint import CheckpointFolder
from melodeon.runtime.checkpoint_file import read_checkpoint

torch.set_num_threads(1)


def test_the_format_is_what_it_says(tmp_path: Path) -> None:
    state = {"a": torch.arange(5.0), "b": torch.zeros(0), "c": [torch.ones(3, 3, dtype=torch.bfloat16), 1]}
    raw = CheckpointFolder(tmp_path).write(7, state, Definition({"seed": 0})).read_bytes()
    magic, version, zero, length = struct.unpack("<8sIIQ", raw[:24])
    assert (magic, version, zero) == (b"MELODEON", 1, 0)
    header = raw[56 : 56 + length]
    assert hashlib.sha256(raw[:24] + header).digest() == raw[24:56]
    assert hashlib.sha256(raw[:-32]).digest() == raw[-32:]
    start = -(-(56 + length) // 64) * 64
    for row in json.loads(header)["tensors"]:
        assert row["offset"] % 64 == 0
        data = raw[start + row["offset"] :][: row["nbytes"]]
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
    assert b"pickle" not in raw


def build(path: Path, header: object, data: bytes = b"", version: int = 1) -> Path:
    """A file with every digest right, whatever the header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = struct.pack("<8sIIQ", b"MELODEON", version, 0, len(text))
    body = prefix + hashlib.sha256(prefix + text).digest() + text
    body += bytes(-len(body) % 64) + data + bytes(-len(data) % 64)
    path.write_bytes(body + hashlib.sha256(body).digest())
    return path


def header_with(row: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    first = {"path": "t", "dtype": "float32", "shape": [2], "offset": 0, "nbytes": 8}
    rows = [{**first, "sha256": hashlib.sha256(bytes(8)).hexdigest(), **(row or {})}]
    return {"step": 1, "definition": {}, "meta": {}, "structure": {"tensor": "t"}, "tensors": rows, **fields}


def test_the_builder_of_hostile_files_can_build_a_good_one(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(build(tmp_path / "file", header_with(), bytes(8)))
    assert torch.equal(checkpoint.state, torch.zeros(2))


ROW = header_with()["tensors"][0]
HOSTILE = {
    "huge shape": header_with({"shape": [2**40], "nbytes": 2**42}),
    "shape overflows": header_with({"shape": [2**61, 8], "nbytes": 0}),
    "shape of zero overflows": header_with({"shape": [0, 2**61, 2**61], "nbytes": 0}),
    "huge dimension": header_with({"shape": [0, 2**80], "nbytes": 0}),
    "many dimensions": header_with({"shape": [1] * 1000 + [2]}),
    "negative dimension": header_with({"shape": [-2], "nbytes": -8}),
    "boolean dimension": header_with({"shape": [True, 2]}),
    "negative offset": header_with({"offset": -64}),
    "offset outside": header_with({"offset": 2**60}),
    "size beyond file": header_with({"nbytes": 2**60, "shape": [2**58]}),
    "size unlike shape": header_with({"nbytes": 4}),
    "overlap": header_with(tensors=[ROW, {**ROW, "path": "u"}]),
    "name twice": header_with(tensors=[ROW, {**ROW, "offset": 64}]),
    "unknown dtype": header_with({"dtype": "object"}),
    "dtype tricks": header_with({"dtype": "load"}),
    "name of another type": header_with({"path": ["t"]}),
    "hash of another type": header_with({"sha256": 3}),
    "row of another type": header_with(tensors=[3]),
    "table of another type": header_with(tensors={}),
    "no table": {},
    "tensor that is not there": header_with(structure={"tensor": "../../etc/passwd"}),
    "structure missing a tag": header_with(structure={}),
    "step of another type": header_with(step="1"),
    "negative step": header_with(step=-1),
    "definition of another type": header_with(definition=[]),
    "definition nested": header_with(definition={"a": {}}),
    "meta of another type": header_with(meta=3),
    "header a list": [],
    "header no JSON": b"{",
    "header no text": b"\xff\xfe",
    "header deep": b"[" * 200_000,
    "number of many digits": b'{"step": ' + b"9" * 10_000 + b"}",
    "structure deep": header_with(structure=json.loads("[" * 300 + "]" * 300)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, name: str) -> None:
    path = build(tmp_path / "step-0000000001.melodeon", HOSTILE[name], bytes(8))
    with pytest.raises(CheckpointError, match="is refused: ") as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"format 2 .* upgrade"):
        read_checkpoint(build(tmp_path / "file", header_with(), bytes(8), version=2))


def test_offsets_must_be_where_the_data_is(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "path": "u", "offset": 64}]
    assert read_checkpoint(build(tmp_path / "file", header_with(tensors=rows), bytes(72))).step == 1
    rows[0] = {**ROW, "offset": 64}
    with pytest.raises(CheckpointError, match="row 0 of its table"):
        read_checkpoint(build(tmp_path / "file", header_with(tensors=rows), bytes(72)))
