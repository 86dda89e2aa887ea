"""The example scripts as a person runs them: small, but real processes."""

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from examples import demo
from melodeon.backends.runs import Request, perform
from melodeon.core.determinism import level_env
from melodeon.core.launch import Launch

EXAMPLES = Path(demo.__file__).parent
MODELS = ("cnn", "gpt")


def run_plain(model: str, script: str, *args: str, prefix: Sequence[str] = ()) -> str:
    command = [sys.executable, *prefix, str(EXAMPLES / model / script), *args]
    env = {**os.environ, **level_env("D1"), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_ours(model: str, runs_root: Path, *args: str, **launch: object) -> str:
    output: list[bytes] = []
    request = Request(
        script=str(EXAMPLES / model / "train_melodeon.py"),
        args=args,
        launch=Launch(determinism="D1", runs_root=str(runs_root), **launch),  # type: ignore[arg-type]
    )
    report = perform(request, on_output=lambda name, data: output.append(data))
    assert report.outcome.ok, (report.outcome, b"".join(output))
    return b"".join(output).decode()


def digest_in(output: str) -> str:
    found = re.findall(r"^digest ([0-9a-f]{64})$", output, re.MULTILINE)
    assert len(found) == 1, output
    return str(found[0])


@pytest.mark.parametrize("model", MODELS)
def test_ddp_order_ends_with_the_digest_of_the_stock_script(model: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    stock = digest_in(run_plain(model, "train_ddp.py", "--epochs", "1", prefix=torchrun))
    ours = run_ours(model, tmp_path, "--epochs", "1", "--virtual-workers", "2", "--order", "ddp")
    assert digest_in(ours) == stock


@pytest.mark.parametrize("model", MODELS)
def test_tree_order_ends_with_one_digest_on_any_split(model: str, tmp_path: Path) -> None:
    args = ("--epochs", "1")
    assert digest_in(run_ours(model, tmp_path, *args)) == digest_in(run_ours(model, tmp_path, *args, counts=(1, 3)))


def test_the_cnn_learns_in_plain_torch() -> None:
    last = re.findall(r"accuracy ([\d.]+)", run_plain("cnn", "train_torch.py", "--epochs", "1"))[-1]
    assert float(last) > 0.6  # guessing gives 0.1


def test_the_gpt_learns_in_plain_torch() -> None:
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", run_plain("gpt", "train_torch.py", "--epochs", "1"))]
    assert losses[-1] < 3.3  # guessing gives ln(80) = 4.4, knowing how frequent each letter is 3.1


@pytest.mark.parametrize("model", MODELS)
def test_the_pairs_differ_in_few_lines(model: str) -> None:
    plain, ours = (
        (EXAMPLES / model / name).read_text().splitlines() for name in ("train_torch.py", "train_melodeon.py")
    )
    added = [line[1:].strip() for line in difflib.ndiff(plain, ours) if line.startswith("+ ") and line[1:].strip()]
    calls = [line for line in added if "job" in line or line == "import melodeon"]
    # import, join, loader, wrap, epochs, backward; the GPT also clips
    assert len(calls) == (6 if model == "cnn" else 7), calls
    assert len(added) - len(calls) <= 4, added  # docstring and options


@pytest.mark.parametrize("model", MODELS)
def test_the_stock_script_imports_nothing_of_melodeon(model: str) -> None:
    for name in ("train_ddp.py", "train_torch.py", "model.py", "data.py"):
        assert not re.search(r"^\s*(import|from) melodeon", (EXAMPLES / model / name).read_text(), re.MULTILINE)


def seen(model: str, state: str | None) -> demo.Seen:
    return demo.Seen(result="accuracy 0.987", model=model * 64, state=state, seconds=12.3)


def test_the_demo_makes_every_run_once() -> None:
    todo = demo.plans()
    assert len(todo) == len(set(todo)) == 14
    assert [plan.label for plan in todo if plan.model == "cnn" and plan.order == "ddp"] == [
        *("1 worker", "2 workers", "3 workers"),
        "4 DDP processes",
    ]


def test_the_demo_sees_a_model_or_a_state_that_differs() -> None:
    assert demo.agree([seen("a", "s"), seen("a", "s"), seen("a", None)])
    assert not demo.agree([seen("a", "s"), seen("b", "s")])
    assert not demo.agree([seen("a", "s"), seen("a", "t")])
    assert not demo.agree([demo.Seen(), demo.Seen()]), "runs without a digest prove nothing"


def test_the_demos_table_fits_80_columns_and_names_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    done = {plan: seen("a", None) for plan in demo.plans()}
    done[demo.plans()[1]] = seen("b", None)
    grid, wrong = demo.table(done)
    Console(width=80, color_system=None).print(grid)
    lines = capsys.readouterr().out.splitlines()
    assert wrong == ["cnn in order tree"]
    assert sum("differ" in line for line in lines) == 3
    assert sum("equal" in line for line in lines) == 11
    assert sum("4 DDP processes" in line and "a" * 12 in line for line in lines) == 2, "no cell wraps"


@pytest.mark.slow
@pytest.mark.timeout(400)  # it trains 14 times; 1.5 minutes on two idle cores
def test_the_demo_agrees() -> None:
    assert demo.main([]) == 0


def test_the_demo_ends_with_6_where_digests_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = iter("abcdefghijklmnop")
    monkeypatch.setattr(demo, "train", lambda *_: seen(next(letters), None))
    assert demo.main(["--model", "cnn"]) == 6
    assert "digests differ for cnn in order tree and cnn in order ddp" in capsys.readouterr().err


def test_adabatch_gives_one_digest_on_any_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.chdir(tmp_path)  # where its runs are kept
    args = ("--epochs", "3", "--double-at", "1,2")
    alone = run_plain("adabatch", "train.py", *args)
    assert re.findall(r"(\d+) steps with batch factor (\d)", alone) == [("63", "1"), ("32", "2"), ("16", "4")]
    shared = run_plain("adabatch", "train.py", *args, prefix=("-m", "melodeon", "run", "--static", "--workers", "3"))
    assert digest_in(shared) == digest_in(alone)
