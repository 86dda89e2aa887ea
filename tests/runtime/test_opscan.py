import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from melodeon.cli.main import app
from melodeon.core import optable
from melodeon.core.errors import UsageError
from melodeon.core.optable import Assessment, assess, causes_of
from melodeon.runtime.opscan import OpScan

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(x)


def make_cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
    return nn.Sequential(*layers), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])


def make_gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Embedding(11, 16), Block(), Block(), nn.Linear(16, 11), nn.Flatten(0, 1))
    tokens = torch.arange(24).view(2, 12) % 11
    return model, tokens, tokens.roll(-1, 1).flatten()


def scan(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[dict[str, object]]:
    optimizer = torch.optim.AdamW(model.parameters())
    found = OpScan({"model": model})
    for _ in range(2):  # two virtual workers
        found.enter()
        functional.cross_entropy(model(x), y).backward()
        found.leave()
    found.enter(commit=True)
    optimizer.step()
    found.leave()
    return found.report()


@pytest.fixture(scope="module")
def cnn() -> list[dict[str, object]]:
    return scan(*make_cnn())


@pytest.fixture(scope="module")
def gpt() -> list[dict[str, object]]:
    return scan(*make_gpt())


def names(found: Assessment, level: str) -> set[tuple[str, str]]:
    return {(finding.module, finding.op.split(".")[1]) for finding in found.stopping(level)}


def test_rows_count_calls_and_share_the_time(cnn: list[dict[str, object]]) -> None:
    rows = {(row["module"], row["op"], row["phase"]): row for row in cnn}
    assert rows["0", "aten.convolution.default", "forward"]["count"] == 2
    assert rows["0", "aten.convolution_backward.default", "backward"]["count"] == 2
    assert {row["device"] for row in cnn} == {"cpu"}
    assert {row["phase"] for row in cnn} == {"forward", "backward", "commit"}
    assert sum(float(str(row["share"])) for row in cnn) == pytest.approx(1)
    json.dumps(cnn)


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_every_operator_of_both_models_is_known(name: str, request: pytest.FixtureRequest) -> None:
    for row in request.getfixturevalue(name):
        for device in ("cpu", "cuda"):
            assert "unknown" not in {cause.name for cause in causes_of(str(row["op"]), device)}, (row["op"], device)


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_on_cpu_both_levels_hold_by_pins(name: str, request: pytest.FixtureRequest) -> None:
    found = assess(request.getfixturevalue(name), "cpu")
    assert not found.stopping("D2")
    assert found.verdict("D2").startswith("D2 on CPU: yes, pinned: ")
    assert "ATEN_CPU_CAPABILITY=avx2" in found.verdict("D2")
    assert "ATEN_CPU_CAPABILITY" not in found.verdict("D1")


def test_on_cuda_the_cnn_stands_against_d2_only(cnn: list[dict[str, object]]) -> None:
    found = assess(cnn, "cuda")
    assert not found.stopping("D1")
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in found.verdict("D1")
    stopping = names(found, "D2")
    assert {("0", "convolution"), ("1", "native_batch_norm"), ("5", "addmm")} <= stopping
    assert not {("2", "relu"), ("3", "max_pool2d_with_indices")} & stopping
    assert found.verdict("D2").startswith("D2 on CUDA: no: ")


def test_on_cuda_the_gpt_names_attention_and_dropout(gpt: list[dict[str, object]]) -> None:
    stopping = {module: op for module, op in names(assess(gpt, "cuda"), "D2") if "attention" in op or "bernoulli" in op}
    assert "attention" in stopping["1"]
    assert stopping["2.mlp.3"] == "bernoulli_"


def test_operators_that_add_in_the_order_of_arrival_stand_against_d1() -> None:
    row = {"module": "up", "op": "aten.upsample_bicubic2d_backward.default", "count": 1, "share": 0.5}
    found = assess([row], "cuda")
    assert found.verdict("D1") == (
        "D1 on CUDA: no: 1 operator (50% of the time) may give other bits elsewhere: upsample_bicubic2d_backward"
    )
    assert assess([row], "cpu").verdict("D1").startswith("D1 on CPU: yes")


def test_cutting_the_gates_of_a_recurrent_layer_stands_against_nothing() -> None:
    for device in ("cpu", "cuda"):
        assert causes_of("aten.unsafe_split.Tensor", device) == causes_of("aten.cat.default", device) == ()


def test_an_operator_in_no_list_is_said_to_be_unknown() -> None:
    found = assess([{"module": "", "op": "mylib.magic.default", "count": 1, "share": 1.0}], "cpu")
    assert [cause.name for cause in found.findings[0].causes] == ["unknown"]
    assert found.findings[0].stops == "D2"


def test_the_table_names_operators_that_torch_has() -> None:
    every = torch._C._dispatch_get_all_op_names()
    known = {optable._base(name.replace("::", ".").split(".")[1]) for name in every if name.startswith("aten::")}
    for table in optable._TABLES.values():
        assert set(table) <= known


def test_a_scan_is_not_ended_by_an_operator_without_a_deterministic_kernel() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        found = OpScan()
        found.enter()
        with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
            torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
        found.leave()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert "aten.put_.default" in {row["op"] for row in found.report()}
    finally:
        torch.use_deterministic_algorithms(False)


SCRIPT = """
import melodeon, torch
from torch.nn import functional
job = melodeon.join(virtual_workers=2, seed=0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
data = torch.utils.data.TensorDataset(torch.ones(32, 4), torch.zeros(32, dtype=torch.long))
loader = job.loader(data, batch_size=4)
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_command_scans_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = ["scan", "--runs-root", str(tmp_path / "runs")]
    shown = CliRunner().invoke(app, [*arguments, "--device", "cuda", str(script)])
    assert shown.exit_code == 0, shown.output
    assert "D2 on CUDA: no: " in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json", str(script)]).stdout.splitlines()[-1])
    assert told["device"] == "cpu"
    assert told["verdicts"]["D2"]["holds"]
    products = [row for row in told["operators"] if row["op"] == "aten.addmm.default"]
    assert [(row["module"], row["count"]) for row in sorted(products, key=lambda row: row["module"])] == [
        ("0", 2),
        ("2", 2),
    ]


def test_the_command_refuses_an_unknown_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    result = CliRunner().invoke(app, ["scan", "--device", "tpu", str(tmp_path / "train.py")])
    assert isinstance(result.exception, UsageError)


def test_a_script_that_trains_no_step_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing to train')")
    result = CliRunner().invoke(app, ["scan", "--runs-root", str(tmp_path / "runs"), str(tmp_path / "train.py")])
    assert isinstance(result.exception, UsageError)
    assert "ended before a step was done" in str(result.exception)
