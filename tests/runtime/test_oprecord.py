import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from typer.testing import CliRunner

from melodeon.core.definition import Definition
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.opdiff import COMMIT_RANK, OpDiff, OpRecord, first_difference, merge, read_records
from melodeon.core.receipt import Receipt, header_line, next_entry
from melodeon.core.statediff import state_line
from melodeon.runtime.oprecord import OpRecorder

torch.set_num_threads(1)

CNN_SITE = "tests/runtime/test_oprecord.py:"
jitter = {"on": False}


@torch.library.custom_op("melodeon_tests::leaky", mutates_args=())
def leaky(x: torch.Tensor) -> torch.Tensor:
    """Depends on more than its inputs, as a kernel chosen by the machine does."""
    return x * (1 + 2**-20) if jitter["on"] else x.clone()


leaky.register_autograd(lambda ctx, grad: grad)


class Leaky(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return leaky(x)


def make_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), Leaky(), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(36, 3),
    )  # fmt: skip


def train(path: Path, ranks: range = range(2), model: nn.Module | None = None, steps: int = 2) -> nn.Module:
    """A worker's loop without the job: `ranks` in turn, and the commit on the sum of both ranks' gradients."""
    model = model or make_cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    recorder = OpRecorder(path, modules={"model": model})
    for step in range(steps):
        for rank in range(2):  # a stand-in for the exchange: this worker computes the others' gradients unrecorded
            torch.manual_seed(100 * step + rank)
            x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
            if rank in ranks:
                recorder.enter(step, rank)
            functional.cross_entropy(model(x), y).backward()
            recorder.leave()
        recorder.enter(step, COMMIT_RANK)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recorder.leave()
    recorder.close()
    return model


def record(tmp_path: Path, work: Callable[[], object], modules: dict[str, nn.Module] | None = None) -> list[OpRecord]:
    recorder = OpRecorder(tmp_path / "ops.jsonl", modules)
    recorder.enter(0, 0)
    work()
    recorder.close()
    return read(tmp_path / "ops.jsonl")


def read(path: Path) -> list[OpRecord]:
    with path.open() as lines:
        return list(read_records(lines, str(path)))


def compare(a: list[Path], b: list[Path]) -> OpDiff:
    return first_difference(merge([read(path) for path in a]), merge([read(path) for path in b]))


@pytest.fixture
def jittering() -> Iterator[None]:
    yield
    jitter["on"] = False


def test_the_same_training_gives_the_same_records(tmp_path: Path) -> None:
    train(tmp_path / "a.jsonl")
    train(tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_recording_changes_no_bit(tmp_path: Path) -> None:
    recorded, plain = train(tmp_path / "a.jsonl"), train(tmp_path / "b.jsonl", ranks=range(0))
    for (name, a), (_, b) in zip(recorded.state_dict().items(), plain.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_records_of_two_workers_equal_those_of_one(tmp_path: Path) -> None:
    train(tmp_path / "whole.jsonl")
    parts = [tmp_path / "part-0.jsonl", tmp_path / "part-1.jsonl"]
    for rank, part in enumerate(parts):
        train(part, ranks=range(rank, rank + 1))
    found = compare([tmp_path / "whole.jsonl"], parts)
    assert found.equal, found.sentence()


@pytest.mark.usefixtures("jittering")
def test_the_operator_that_differs_is_named(tmp_path: Path) -> None:
    train(tmp_path / "a.jsonl")
    jitter["on"] = True
    train(tmp_path / "b.jsonl")
    found = compare([tmp_path / "a.jsonl"], [tmp_path / "b.jsonl"])
    assert found.kind == "operator"
    assert found.a is not None
    assert (found.a.step, found.a.rank, found.a.op) == (0, 0, "melodeon_tests.leaky.default")
    assert (found.a.module, found.a.phase) == ("4", "forward")
    assert found.a.site.startswith(CNN_SITE)
    assert "sampled output values differ, by up to" in found.size()


def test_another_seed_is_a_random_stream_that_differs(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(record(tmp_path, lambda: functional.dropout(torch.ones(50), 0.5)))
    found = first_difference(*runs)
    assert found.kind == "random"
    assert "aten.bernoulli_.float" in found.sentence()


def test_attention_without_dropout_draws_nothing(tmp_path: Path) -> None:
    q = torch.randn(1, 2, 8, 4)
    rows = record(tmp_path, lambda: functional.scaled_dot_product_attention(q, q, q))
    assert [row.random for row in rows] == [False]


def test_other_parameters_at_the_start_are_inputs_that_differ(tmp_path: Path) -> None:
    train(tmp_path / "a.jsonl")
    model = make_cnn()
    with torch.no_grad():
        model[7].bias[0] += 1e-3
    train(tmp_path / "b.jsonl", model=model)
    sentence = compare([tmp_path / "a.jsonl"], [tmp_path / "b.jsonl"]).sentence()
    assert "aten.addmm.default in 7" in sentence
    assert "7.bias as left by the start of the run" in sentence


def test_backward_operators_carry_the_forward_call(tmp_path: Path) -> None:
    rows = read_training(tmp_path)
    backward = {row.op: row for row in rows if row.phase == "backward"}
    forward = {row.op: row for row in rows if row.phase == "forward"}
    pairs = {"convolution_backward": "convolution", "native_batch_norm_backward": "native_batch_norm"}
    for after, before in pairs.items():
        left, right = backward[f"aten.{after}.default"], forward[f"aten.{before}.default"]
        assert (left.module, left.site) == (right.module, right.site) != ("", "")


def read_training(tmp_path: Path) -> list[OpRecord]:
    train(tmp_path / "w.jsonl", steps=1)
    return read(tmp_path / "w.jsonl")


def test_the_commit_is_recorded_with_the_names_of_gradients(tmp_path: Path) -> None:
    rows = [row for row in read_training(tmp_path) if row.rank == COMMIT_RANK]
    assert {row.phase for row in rows} == {"commit"}
    clip = next(row for row in rows if row.op == "aten._foreach_norm.Scalar")
    assert clip.names[0] == "0.weight.grad"
    assert len(clip.outputs) == len(clip.names) == 6
    scale = next(row for row in rows if row.op == "aten._foreach_mul_.Tensor")
    assert len(scale.outputs) == 6
    assert scale.inputs[:6] != scale.outputs


def test_batch_norm_records_the_buffers_it_writes(tmp_path: Path) -> None:
    rows = [row for row in read_training(tmp_path) if row.op == "aten.native_batch_norm.default"]
    assert rows[0].names[3] == "1.running_mean"
    # output, mean, inverse deviation, and the two buffers after the call
    assert len(rows[0].outputs) == 5
    assert rows[0].inputs[3:5] != rows[0].outputs[3:]


def test_in_place_operators_are_recorded_before_and_after(tmp_path: Path) -> None:
    x = torch.ones(3)
    (row,) = record(tmp_path, lambda: x.add_(1))
    assert row.inputs[0] != row.outputs[0]
    (again,) = record(tmp_path, lambda: torch.full((3,), 2.0))
    assert again.outputs == row.outputs


def test_views_and_allocations_compute_nothing(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    rows = record(tmp_path, lambda: (x.t(), x.view(6), x[0], x.detach(), torch.empty(5), x.unsqueeze_(0)))
    assert rows == []


def test_memory_that_nobody_wrote_is_not_read(tmp_path: Path) -> None:
    def work() -> None:
        fresh = torch.empty(4)
        torch.add(fresh, 1.0)
        fresh[:2].copy_(torch.ones(2))
        fresh[2:].fill_(3.0)
        fresh.sum()

    rows = {row.op: row for row in record(tmp_path, work)}
    assert rows["aten.add.Tensor"].inputs[0] == "f32[4]#-"
    assert rows["aten.copy_.default"].inputs[0] == "f32[2]#-"
    assert rows["aten.fill_.Scalar"].inputs[0] == "f32[2]#-"
    assert rows["aten.sum.default"].inputs[0] != "f32[4]#-"


def test_out_arguments_are_written_and_not_read(tmp_path: Path) -> None:
    x, out = torch.ones(3), torch.full((3,), float("nan"))
    (row,) = record(tmp_path, lambda: torch.add(x, 1, out=out))
    assert "out=f32[3]#-" in row.inputs
    assert len(row.outputs) == 1


def test_plain_and_absent_arguments_count_as_inputs(tmp_path: Path) -> None:
    x = torch.arange(4.0)
    low, high = record(tmp_path, lambda: (x.clamp(min=1.0), x.clamp(max=1.0)))
    assert low.inputs != high.inputs
    generator = torch.Generator().manual_seed(0)
    (row,) = record(tmp_path, lambda: torch.rand(3, generator=generator))
    assert "generator=generator" in row.inputs
    assert row.random


def test_values_and_not_strides_are_compared(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    flat, strided = record(tmp_path, lambda: (x.neg(), x.t().contiguous().t().neg()))[::2]
    assert flat.outputs == strided.outputs


def test_autocast_shows_its_casts(tmp_path: Path) -> None:
    layer = nn.Linear(4, 2)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.ones(1, 4)).float().sum().backward()

    rows = record(tmp_path, work, {"model": layer})
    product = next(row for row in rows if row.op == "aten.addmm.default")
    assert all(value.startswith("bf16[") for value in product.inputs[:3])
    assert product.module == "model"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j]),
        torch.tensor([1 + 2j]).conj(),
        torch.eye(3).to_sparse(),
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.ones(3, dtype=torch.float16),
        torch.full((3,), float("nan")),
        torch.ones(2, device="meta"),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tensor.layout}-{tensor.device}",
)
def test_every_kind_of_tensor_can_be_described(tmp_path: Path, tensor: torch.Tensor) -> None:
    rows = record(tmp_path, lambda: torch.clone(tensor))
    assert rows[-1].outputs


def test_checkpointed_forwards_keep_their_module(tmp_path: Path) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def work() -> None:
        checkpoint(layer, torch.ones(1, 4), use_reentrant=False).sum().backward()

    products = [row for row in record(tmp_path, work, {"m": layer}) if row.op == "aten.addmm.default"]
    assert [(row.phase, row.module) for row in products] == [("forward", "0"), ("backward", "0")]
    assert products[0].outputs == products[1].outputs


def test_a_forward_that_raises_leaves_no_module_behind(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)

    def work() -> None:
        with pytest.raises(RuntimeError):
            layer(torch.ones(1, 5))
        torch.ones(2).neg()

    assert record(tmp_path, work, {"m": layer})[-1].module == ""


def test_several_models_have_their_names_in_front(tmp_path: Path) -> None:
    models = {"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Sequential(nn.Linear(2, 2))}
    rows = record(tmp_path, lambda: [model(torch.ones(1, 2)) for model in models.values()], models)
    assert [row.module for row in rows if row.op == "aten.addmm.default"] == ["a.0", "b.0"]


def test_nothing_is_recorded_outside_and_no_hook_stays(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    recorder = OpRecorder(tmp_path / "w.jsonl", {"m": layer})
    layer(torch.ones(1, 2))
    recorder.enter(0, 0)
    recorder.leave()
    recorder.leave()
    layer(torch.ones(1, 2))
    recorder.close()
    assert (tmp_path / "w.jsonl").read_text() == ""
    assert not nn.modules.module._global_forward_hooks


def run_folder(root: Path, name: str, **train_arguments: Any) -> Path:
    folder = root / name
    train(folder / "ops" / "worker-0.jsonl", **train_arguments)
    (folder / "definition.json").write_text(json.dumps({"threads": 1, "name": name}))
    return folder


def diff(*arguments: object) -> tuple[int, str]:
    from melodeon.cli.main import app

    result = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.usefixtures("jittering")
def test_the_command_shows_the_operator_within_80_columns(tmp_path: Path) -> None:
    a = run_folder(tmp_path, "a")
    jitter["on"] = True
    b = run_folder(tmp_path, "b")
    code, text = diff(a, b)
    assert code == 6
    assert "melodeon_tests.leaky.default in 4" in " ".join(text.split())
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 80
    code, text = diff("a", "b", "--runs-root", tmp_path, "--json")
    assert code == 6
    assert json.loads(text)["a"]["module"] == "4"


def test_the_command_is_quiet_about_equal_runs(tmp_path: Path) -> None:
    code, text = diff(run_folder(tmp_path, "a"), run_folder(tmp_path, "b"))
    assert code == 0
    assert "operators agree" in text


def test_runs_that_are_not_there_or_have_no_records_are_said_so(tmp_path: Path) -> None:
    a = run_folder(tmp_path, "a")
    (tmp_path / "bare").mkdir()
    with pytest.raises(NotFound, match="'nowhere' is neither a folder nor a run"):
        diff(a, "nowhere")
    with pytest.raises(UsageError, match=r"bare has no operator records.*melodeon run --record-ops"):
        diff(a, tmp_path / "bare")


@pytest.mark.parametrize(("last", "code"), [("3", 0), ("4", 6)])
@pytest.mark.parametrize("name", ["states.jsonl", "receipt.jsonl"])
def test_without_operators_states_or_receipts_give_the_step(tmp_path: Path, name: str, last: str, code: int) -> None:
    for folder, end in (("a", "3"), ("b", last)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps({"script": "train.py", "args": ["--fast"]}))
        entries = {1: "1" * 64, 2: end * 64}
        if name == "states.jsonl":
            lines = [state_line(step, digest, {"models.0.w": digest}) for step, digest in entries.items()]
        else:
            receipt = Receipt(Definition({"seed": 0}))
            lines = [header_line(receipt.definition)]
            chain = receipt.chain
            for step, digest in entries.items():
                entry = next_entry(chain, step, digest)
                chain = entry.chain
                lines.append(entry.line())
        (tmp_path / folder / name).write_text("".join(lines))
    found, text = diff(tmp_path / "a", tmp_path / "b")
    assert found == code
    assert ("melodeon run --record-ops --no-resume --steps 2 train.py --fast" in text) == (code == 6)
    assert json.loads(diff(tmp_path / "a", tmp_path / "b", "--json")[1])["step"] == (2 if code else None)


def test_the_command_does_not_import_torch(tmp_path: Path) -> None:
    a = run_folder(tmp_path, "a")
    code = "import sys; from melodeon.cli.diff import diff; diff(*sys.argv[1:]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(a), str(a)], check=True, capture_output=True)


SCRIPT = """
import melodeon, torch
from torch.nn import functional
job = melodeon.join(virtual_workers=3, seed=0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
model, optimizer = job.wrap(model, torch.optim.AdamW(model.parameters()))
data = torch.utils.data.TensorDataset(torch.arange(96.0).view(24, 4), torch.zeros(24, dtype=torch.long))
loader = job.loader(data, batch_size=4, shuffle=True)
for epoch in job.epochs(1):
    for x, y in loader:
        job.backward(functional.cross_entropy(model(x), y))
        job.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_job_records_the_same_operators_on_one_worker_and_on_two(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for assignment, name in (("3", "one"), ("1,2", "two")):
        options = ["--record-ops", "--quiet", "--assignment", assignment, "--name", name]
        command = [sys.executable, "-m", "melodeon", "run", *options, "train.py"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    code, text = diff("one", "two", "--runs-root", tmp_path / ".melodeon" / "runs", "--json")
    assert code == 0, text
    # 2 steps of 3 virtual workers and a commit each; the sum of gradients between them is not recorded
    assert json.loads(text)["compared"] > 100
