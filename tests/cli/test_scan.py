"""`melodeon scan` as a person runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from melodeon.cli.output import print_table

SCRIPT = """
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset
import melodeon

job = melodeon.join(virtual_workers=2, seed=0)
model = torch.nn.Linear(6, 3)
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(TensorDataset(torch.ones(8, 6), torch.arange(8) % 3), batch_size=2)
job.checkpoint("checkpoints", every=1)
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
print("the script's own words")
"""


def scan(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "melodeon", "scan", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_operators_are_listed_and_the_scripts_checkpoints_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = scan(tmp_path, "--json", "--device", "cuda", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "aten.addmm.default" in [row["op"] for row in found["operators"]]
    assert (found["verdicts"]["D1"]["holds"], found["verdicts"]["D2"]["holds"]) == (True, False)
    assert "the script's own words" in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_a_long_module_path_is_folded_and_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "a_rather_long_name_of_a_module_in_a_model_that_is_deep.0.attention.out_projection"
    print_table(["module", "operator", "calls"], [[path, "convolution_backward", "12"]])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80
    assert "".join(line.split()[0] for line in lines[2:]) == path


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["trian.py"], 4, "script 'trian.py' is not there: did you mean train.py?"),
        (["."], 4, "'.' is a folder"),
        (["--device", "tpu", "train.py"], 2, "--device tpu is not known: choose one of cpu, cuda"),
        (["--runs-root", "train.py", "train.py"], 2, "cannot be made (Not a directory): choose another --runs-root"),
        (["train.py"], 2, "train.py ended before a step was done, so there is nothing to list"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, args: list[str], code: int, sentence: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = scan(tmp_path, *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert sentence in done.stderr


def test_a_script_that_fails_says_its_sentence_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("batch_size=2", "batch_size=0"))
    done = scan(tmp_path, "train.py")
    assert done.returncode == 2
    assert done.stderr.count("batch_size=0 must be a whole number") == 1
    assert "worker-0.err" in done.stderr
