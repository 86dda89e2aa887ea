"""Mistakes that show only between workers: one sentence each, a non-zero exit, and nobody goes on alone."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.loop import bad_cases
from tests.runtime.loop.crew import Case, run


@pytest.mark.parametrize(
    ("case", "split", "options", "code", "sentence"),
    [
        (bad_cases.train, (3, 2), {}, 2, "assignment 3,2 sums to 5, but the job has virtual_workers=4"),
        (bad_cases.train, (1, 1), {"virtual_workers": 1}, 2, "assignment 1,1 sums to 2"),
        (bad_cases.train, (2, 2), {"virtual_workers": 0}, 2, "virtual_workers=0 must be"),
        (bad_cases.train, (2, 2), {"order": "ring"}, 2, "order='ring' is not known"),
        (bad_cases.train, (3, 1), {"uneven_break": True}, 2, "the loop was left inside step 1, at virtual worker 1"),
        (bad_cases.train, (2, 2), {"grow_at": 1}, 2, "the dataset has 17 samples and had 16 when the loader was made"),
        (
            bad_cases.other_weights,
            (2, 2),
            {},
            2,
            "the model differs between workers: '1.bias' of worker 1 is not worker 0's",
        ),
        (bad_cases.other_shape, (2, 2), {}, 2, "the model differs between workers: '1.weight' of worker 1"),
        (
            bad_cases.other_length,
            (2, 2),
            {},
            2,
            "the job differs between workers: loader0 is '17 samples, batches of 2",
        ),
        (
            bad_cases.other_epochs,
            (2, 2),
            {},
            2,
            "the job differs between workers: job.epochs is 2 on worker 1 and 1 on worker 0",
        ),
        (bad_cases.drifts, (2, 2), {}, 6, "after step 2 worker 1 has another state than worker 0"),
        (bad_cases.fails, (2, 2), {}, 1, "the script's own mistake"),
    ],
)
def test_several_workers(
    case: Case, split: tuple[int, ...], options: dict[str, Any], code: int, sentence: str, tmp_path: Path
) -> None:
    ended = run(case, split, tmp_path / "run", **options)
    assert all(ended.codes), "nobody goes on alone"
    assert -signal.SIGKILL not in ended.codes, "nobody is stuck"
    assert code in ended.codes
    assert any(sentence in error for error in ended.errors), ended.errors
    assert len(ended.errors) <= len(split), "every worker says it once"


@pytest.mark.parametrize("order", ["tree", "ddp"])
@pytest.mark.parametrize("split", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_clipping_by_hand_is_refused_on_every_split(order: str, split: tuple[int, ...], tmp_path: Path) -> None:
    """On some of them the gradients are elsewhere by then, and it would do nothing without a word."""
    ended = run(bad_cases.clips_by_itself, split, tmp_path / "run", order=order)
    assert set(ended.codes) == {2}
    assert "clip with job.clip_grad_norm_" in ended.errors[0]


DIFFERS = """
import os
import torch
import melodeon

job = melodeon.join(virtual_workers=2)
model = torch.nn.Linear(2, 2)
model.bias.data.fill_(os.getpid())
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in job.epochs(1):
    pass
"""


def run_with_agents(script: str, workers: int, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """`melodeon run` as most people call it: the workers have agents, and take their places later than others."""
    path = tmp_path / "train.py"
    path.write_text(script)
    command = [sys.executable, "-m", "melodeon", "run", "--workers", str(workers)]
    command += ["--runs-root", str(tmp_path / "runs"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_more_workers_than_virtual_workers(tmp_path: Path) -> None:
    ended = run_with_agents("import melodeon\nmelodeon.join(virtual_workers=1)\n", 2, tmp_path)
    assert ended.returncode == 2
    assert "2 workers cannot share 1 virtual worker:" in ended.stderr


def test_a_wrong_argument_of_join_ends_a_run_with_its_sentence_alone(tmp_path: Path) -> None:
    ended = run_with_agents("import melodeon\nmelodeon.join(virtual_workers=0)\n", 1, tmp_path)
    assert ended.returncode == 2
    sentence = "error: virtual_workers=0 must be a whole number of at least 1, such as 8"
    (said,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert said.startswith(sentence)  # with its log behind it where the worker was ended before it could say it itself


def test_a_model_that_differs_is_found_where_workers_have_agents(tmp_path: Path) -> None:
    ended = run_with_agents(DIFFERS, 2, tmp_path)
    assert ended.returncode == 2
    assert "the model differs between workers: 'bias' of worker 1 is not worker 0's" in ended.stderr


def test_a_dataset_that_differs_is_found_where_workers_have_agents(tmp_path: Path) -> None:
    other = RAISES.replace("torch.ones(40, 2)", "torch.ones(40 + os.getpid() % 64, 2)")
    ended = run_with_agents(f"import os\n{other}", 2, tmp_path)
    assert ended.returncode == 1
    assert "has another loader0 than the workers before it" in ended.stderr


def test_a_number_of_epochs_that_differs_is_found_where_workers_have_agents(tmp_path: Path) -> None:
    """Whoever has fewer would leave the others alone in the middle of a step."""
    other = RAISES.replace("job.epochs(1)", "job.epochs(1 + os.getpid() % 64)")
    ended = run_with_agents(f"import os\n{other}", 2, tmp_path)
    assert ended.returncode == 1
    assert "has another job.epochs than the workers before it" in ended.stderr


RAISES = """
import melodeon, torch
job = melodeon.join(virtual_workers=2)
model = torch.nn.Linear(2, 2)
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(torch.utils.data.TensorDataset(torch.ones(40, 2)), batch_size=1)
for _ in job.epochs(1):
    for (x,) in loader:
        if job.step == 7:
            {}["absent"]
        job.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_scripts_own_exception_keeps_its_type_where_workers_have_agents(tmp_path: Path) -> None:
    ended = run_with_agents(RAISES, 2, tmp_path)
    assert ended.returncode == 1
    (run,) = (tmp_path / "runs").iterdir()
    record = json.loads((run / "run.json").read_text())
    named = re.fullmatch(r"worker (\d) failed: KeyError: 'absent'", record["reason"])
    assert named, record
    assert f"error: {record['reason']} (log: {run}/worker-{named[1]}.err)\n" in ended.stderr
    assert (record["steps"], record["digest"]) == (7, None), "all that it has trained, told or not"
