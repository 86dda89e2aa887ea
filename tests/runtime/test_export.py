import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import melodeon
from melodeon.cli.export import export
from melodeon.core.definition import Definition
from melodeon.core.errors import CheckpointError, MelodeonError, MissingTorch, NotFound, UsageError
from melodeon.runtime.checkpoint import CheckpointFolder
from melodeon.runtime.digest import digest_state
from melodeon.runtime.export import export_state_dict

torch.set_num_threads(1)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    convolution = nn.Conv2d(3, 4, 3)
    convolution.weight.data = convolution.weight.detach().contiguous(memory_format=torch.channels_last)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2).to(torch.bfloat16))


def write(path: Path, step: int = 5, **parts: Any) -> Path:
    state = {"models": {"0": make_model().state_dict()}, "optimizers": {}, "registered": {}, **parts}
    return CheckpointFolder(path).write(step, state, Definition({"seed": 0}))


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The published format, read by hand: length, header, then data that fills the rest without holes."""
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert raw[8:9] == b"{"
    assert (8 + length) % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    data, end = raw[8 + length :], 0
    tensors = {}
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(row) == {"dtype", "shape", "data_offsets"}
        start, stop = row["data_offsets"]
        assert start == end
        end = stop
        dtype = kinds[row["dtype"]]
        assert start % dtype.itemsize == 0
        tensors[name] = torch.frombuffer(bytearray(data[start:stop]), dtype=dtype).reshape(row["shape"])
    assert end == len(data)
    return tensors


def test_pt_loads_without_pickle_into_a_fresh_model(tmp_path: Path) -> None:
    done = export_state_dict(write(tmp_path / "folder"), tmp_path / "model.pt")
    assert (done.step, done.num_tensors, done.notes) == (5, 9, ())
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert type(loaded) is dict
    fresh = make_model(seed=1)
    fresh.load_state_dict(loaded)
    assert digest_state(fresh.state_dict()) == digest_state(make_model().state_dict())


def test_safetensors_holds_the_same_bits(tmp_path: Path) -> None:
    export_state_dict(write(tmp_path / "folder"), tmp_path / "model.safetensors")
    loaded = read_safetensors(tmp_path / "model.safetensors")
    assert digest_state(loaded) == digest_state(make_model().state_dict())


def test_a_folder_gives_its_newest_good_checkpoint_and_says_what_was_refused(tmp_path: Path) -> None:
    write(tmp_path / "folder", 1)
    newest = write(tmp_path / "folder", 2)
    assert export_state_dict(tmp_path / "folder", tmp_path / "model.pt").step == 2
    newest.write_bytes(newest.read_bytes()[:-1])
    done = export_state_dict(tmp_path / "folder", tmp_path / "model.pt")
    assert done.step == 1
    assert "truncated" in done.notes[0]


def test_several_models_need_a_choice(tmp_path: Path) -> None:
    models = {"0": {"w": torch.zeros(1)}, "1": {"w": torch.ones(1)}}
    path = write(tmp_path / "folder", models=models)
    with pytest.raises(UsageError, match="holds 2 models: choose --model 0 or 1"):
        export_state_dict(path, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"--model 7 is not in .* holds 0, 1"):
        export_state_dict(path, tmp_path / "model.pt", model_key="7")
    export_state_dict(path, tmp_path / "model.pt", model_key="1")
    assert torch.load(tmp_path / "model.pt", weights_only=True)["w"].item() == 1


def test_registered_state_may_be_nested(tmp_path: Path) -> None:
    ema = {"shadow": {"fc.weight": torch.ones(2)}, "decay": 0.9}
    others = {"count": 3, "flat": {"a": {"b": torch.ones(1)}}, "array": {"x": np.zeros(3)}}
    path = write(tmp_path / "folder", registered={"ema": ema, **others})
    export_state_dict(path, tmp_path / "ema.pt", registered="ema")
    assert digest_state(torch.load(tmp_path / "ema.pt", weights_only=True)) == digest_state(ema)
    export_state_dict(path, tmp_path / "flat.safetensors", registered="flat")
    assert list(read_safetensors(tmp_path / "flat.safetensors")) == ["a.b"]
    with pytest.raises(UsageError, match=r"decay \(float\) has no place"):
        export_state_dict(path, tmp_path / "ema.safetensors", registered="ema")
    with pytest.raises(UsageError, match="such as numpy arrays"):
        export_state_dict(path, tmp_path / "array.pt", registered="array")
    assert not (tmp_path / "array.pt").exists()
    with pytest.raises(UsageError, match="only a state_dict"):
        export_state_dict(path, tmp_path / "count.pt", registered="count")
    with pytest.raises(UsageError, match="cannot both"):
        export_state_dict(path, tmp_path / "ema.pt", registered="ema", model_key="0")


@pytest.mark.parametrize(
    "state",
    [{"__metadata__": torch.zeros(1)}, {"w": torch.zeros(1, dtype=torch.complex128)}, {"_extra_state": {"n": 1}}],
    ids=["reserved", "dtype", "extra"],
)
def test_what_safetensors_cannot_hold_is_refused_by_name(tmp_path: Path, state: dict[str, Any]) -> None:
    path = write(tmp_path / "folder", models={"0": state})
    output = tmp_path / "model.safetensors"
    output.write_text("what was there")
    with pytest.raises(UsageError, match=f"{next(iter(state))}.*export to a .pt file"):
        export_state_dict(path, output)
    assert output.read_text() == "what was there"
    export_state_dict(path, tmp_path / "model.pt")
    assert digest_state(torch.load(tmp_path / "model.pt", weights_only=True)) == digest_state(state)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "model.pt", "model.safetensors"]


def test_names_that_would_meet_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "folder", models={"0": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}})
    with pytest.raises(UsageError, match=r"both be called a\.b"):
        export_state_dict(path, tmp_path / "model.safetensors")
    export_state_dict(path, tmp_path / "model.pt")


def test_wrong_paths_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "folder")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="absent is not there"):
        export_state_dict(tmp_path / "absent", tmp_path / "model.pt")
    with pytest.raises(NotFound, match="holds no checkpoint"):
        export_state_dict(tmp_path / "empty", tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"must end in \.pt or \.safetensors"):
        export_state_dict(path, tmp_path / "model.onnx")
    with pytest.raises(NotFound, match="create it first"):
        export_state_dict(path, tmp_path / "absent" / "model.pt")
    (tmp_path / "taken.pt").mkdir()
    with pytest.raises(MelodeonError, match="cannot be written"):
        export_state_dict(path, tmp_path / "taken.pt")
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated"):
        export_state_dict(path, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*truncated"):
        export_state_dict(path.parent, tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_no_room_for_the_output_is_said_and_keeps_what_was_there(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "folder")
    (tmp_path / name).write_text("what was there")
    code = """
import resource, sys
from melodeon.core.errors import MelodeonError
from melodeon.runtime.export import export_state_dict
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    export_state_dict(*sys.argv[1:])
except MelodeonError as error:
    print(error)
"""
    root = Path(melodeon.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / name)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (
        done.stdout
        == f"output {tmp_path / name} cannot be written (File too large): make room or choose another place\n"
    )
    assert (tmp_path / name).read_text() == "what was there"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", name]


def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(export)
    return app


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    models = {"0": {"w": torch.zeros(1)}, "1": {"w": torch.ones(1)}}
    write(tmp_path / "folder", models=models)
    arguments = [str(tmp_path / "folder"), "-o", str(tmp_path / "model.pt"), "--model", "1"]
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == 0
    assert f"wrote {tmp_path / 'model.pt'}: 1 tensors of step 5" in result.stdout
    assert torch.load(tmp_path / "model.pt", weights_only=True)["w"].item() == 1


def test_the_command_without_torch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app(), [str(tmp_path), "-o", "model.pt"])
    assert isinstance(result.exception, MissingTorch)
    assert "pip install" in str(result.exception)
