"""`melodeon verify` as a person runs it, on a small script that trains for real."""

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import called

STEPS = 6
"""Two epochs of 26 samples in batches of 3 for 3 virtual workers."""

SCRIPT = """
import argparse
import torch
import torch.nn.functional as F
from torch import nn
import melodeon

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--wrong-from", type=int)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--drift", action="store_true")
options = parser.parse_args()

job = melodeon.join(virtual_workers=3, seed=options.seed)
model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = job.wrap(model, optimizer)
generator = torch.Generator().manual_seed(5)
data = torch.utils.data.TensorDataset(
    torch.randn(26, 6, generator=generator), torch.randint(0, 3, (26,), generator=generator)
)
class Count:
    def __init__(self):
        self.seen = 0
    def state_dict(self):
        return {"seen": self.seen}
    def load_state_dict(self, state):
        self.seen = state["seen"]

count = job.register("count", Count())
loader = job.loader(data, batch_size=3, shuffle=True)
job.checkpoint("checkpoints", every=2)
for epoch in job.epochs(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        if options.wrong_from is not None and job.step >= options.wrong_from:
            loss = loss * (1 + job.num_workers)  # the mistake: the result depends on the workers
        if options.fail and job.step == 2:
            raise ValueError("a script of its own mind")
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        count.seen += options.drift  # the mistake: once per virtual worker
    print("an epoch's own output")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def runs_in(folder: Path) -> list[str]:
    root = folder / ".melodeon" / "runs"
    return sorted(path.name for path in root.iterdir()) if root.is_dir() else []


def test_any_number_of_workers_is_found_equal_and_nothing_is_left(folder: Path) -> None:
    done = called(folder, "verify", "train.py", "--workers", "1,2,3", "--steps", "9")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    table = [(line[0], line[1], line[-1]) for line in lines if line[0].isdigit()]
    assert table[0] == ("1", "3", "reference")
    assert sorted(table[1:3]) == [("2", "1,2", "yes"), ("2", "2,1", "yes")]
    assert table[3:] == [("3", "1,1,1", "yes")]
    assert len({line[3] for line in lines if line[0].isdigit()}) == 1
    assert f"equal: 4 runs have the same state after each of {STEPS} steps" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "own output" not in done.stdout
    assert runs_in(folder) == []
    assert not (folder / "checkpoints").exists()


def test_stock_ddp_is_found_equal(folder: Path) -> None:
    done = called(folder, "verify", "--against", "ddp", "--workers", "1", "--keep", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["equal"], result["order"], result["reference"]) == (True, "ddp", "stock DDP")
    assert [run["engine"] for run in result["runs"]] == ["melodeon", "stock-ddp"]
    assert [run["steps"] for run in result["runs"]] == [STEPS, STEPS]
    assert len({run["digest"] for run in result["runs"]}) == 1
    assert [Path(run["run_dir"]).name for run in result["runs"]] == sorted(runs_in(folder), reverse=True)


def test_a_stock_run_of_a_model_past_its_wrapper_is_no_finding(folder: Path) -> None:
    script = SCRIPT.replace("model, optimizer = job.wrap(model, optimizer)", "job.wrap(model, optimizer)")
    (folder / "train.py").write_text(script)
    done = called(folder, "verify", "--against", "ddp", "--workers", "1", "--steps", "2", "train.py")
    assert done.returncode == 2
    assert "the model that ran is not the one that job.wrap returned" in done.stderr


def test_an_average_of_the_model_is_found_equal_to_stock_ddps(folder: Path) -> None:
    average = 'average = job.register("average", torch.optim.swa_utils.AveragedModel(model))'
    script = SCRIPT.replace("loader = job.loader", f"{average}\nloader = job.loader")
    script = script.replace("        count.seen", "        average.update_parameters(model)\n        count.seen")
    (folder / "train.py").write_text(script)
    done = called(folder, "verify", "--against", "ddp", "--workers", "2", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "have the same state after each of 3 steps" in done.stdout


def test_a_stock_run_that_fails_shows_where(folder: Path) -> None:
    failing = 'if type(model).__name__ == "DistributedDataParallel":\n    raise ValueError("in stock alone")'
    (folder / "train.py").write_text(SCRIPT.replace("loader = job.loader", f"{failing}\nloader = job.loader"))
    done = called(folder, "verify", "--against", "ddp", "--workers", "1", "--steps", "1", "train.py")
    assert done.returncode == 1
    assert "in <module>" in done.stderr
    assert "failed: ValueError: in stock alone" in done.stderr


def test_a_script_that_asks_for_its_workers_is_caught(folder: Path) -> None:
    done = called(folder, "verify", "train.py", "--workers", "1", "--assignment", "1,2", "--", "--wrong-from", "2")
    assert done.returncode == 6
    told = " ".join(done.stdout.split())
    assert "different: step 3: assignment 1,2 differs from assignment 3 in" in told
    assert "models.0.0.weight" in told
    assert len(runs_in(folder)) == 2
    commands = [line.strip() for line in done.stdout.splitlines() if line.startswith("  melodeon ")]
    assert len(commands) == 3
    for command in commands[:2]:
        assert called(folder, *shlex.split(command)[1:]).returncode == 0, command
    found = called(folder, *shlex.split(commands[2])[1:])
    assert found.returncode == 6
    assert "step 2" in found.stdout


def test_a_run_that_stops_because_its_workers_part_is_one_of_the_findings(folder: Path) -> None:
    split = ["--steps", "2", "--assignment", "1,2"]
    done = called(folder, "verify", "train.py", "--workers", "1,3", *split, "--", "--drift")
    assert done.returncode == 6
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [(row[1], row[4], row[-1]) for row in rows] == [
        ("3", "2", "reference"),
        ("1,1,1", "2", "no"),
        ("1,2", "0", "no"),
    ]
    told = " ".join(done.stdout.split())
    assert "different: step 1: assignment 1,1,1 differs from assignment 3 in 1 of" in told
    assert "assignment 1,2 differs within itself: after step 1 worker 1 has another state than worker 0" in told
    assert "what a script changes once per virtual worker must change once per step" in told

    done = called(folder, "verify", "train.py", "--workers", "1", *split, "--json", "--", "--drift")
    assert done.returncode == 6
    result = json.loads(done.stdout)
    assert [(run["equal"], run["steps"]) for run in result["runs"]] == [(True, 2), (False, 0)]
    assert result["difference"]["step"] == 1
    assert result["difference"]["sentence"].endswith(result["runs"][1]["drift"])


def test_a_receipt_that_the_run_cannot_confirm_because_its_workers_part(folder: Path) -> None:
    assert called(folder, "run", "--quiet", "--static", "--name", "a", "--steps", "2", "train.py").returncode == 0
    receipt = str(folder / ".melodeon" / "runs" / "a" / "receipt.jsonl")
    done = called(folder, "verify", "--receipt", receipt, "--workers", "2", "--json", "train.py", "--", "--drift")
    assert done.returncode == 6
    result = json.loads(done.stdout)
    assert (result["equal"], result["difference"]["actual"]) == (False, None)
    assert result["drift"].startswith("after step 1 worker 1 has another state than worker 0")


def test_a_failing_script_ends_the_verification_with_its_words(folder: Path) -> None:
    done = called(folder, "verify", "--workers", "2", "train.py", "--", "--fail")
    assert done.returncode == 1
    assert "ValueError: a script of its own mind" in done.stderr
    [run] = runs_in(folder)
    assert f"(log: .melodeon/runs/{run}/worker-" in done.stderr


def test_a_receipt_is_confirmed_by_a_run_and_refused_for_another_seed_or_an_edit(folder: Path) -> None:
    assert called(folder, "run", "--quiet", "--name", "a", "--order", "ddp", "train.py").returncode == 0
    receipt = folder / ".melodeon" / "runs" / "a" / "receipt.jsonl"

    same = called(folder, "verify", "--receipt", str(receipt), "--workers", "2", "train.py")
    assert same.returncode == 0, same.stderr
    assert f"equal: 2 digests, up to step {STEPS}, found again on 2 workers" in " ".join(same.stdout.split())
    assert runs_in(folder) == ["a"]

    other = called(folder, "verify", "--json", "--receipt", str(receipt), "train.py", "--", "--seed", "1")
    assert other.returncode == 6
    result = json.loads(other.stdout)
    assert result["difference"]["step"] == STEPS // 2
    assert result["definition"] == ["seed is 0 there and 1 here"]
    assert len(runs_in(folder)) == 2

    lines = receipt.read_text().splitlines(keepends=True)
    digest = json.loads(lines[1])["digest"]
    receipt.write_text(lines[0] + lines[1].replace(digest, digest[::-1]) + lines[2])
    edited = called(folder, "verify", "--receipt", str(receipt), "train.py")
    assert edited.returncode == 2
    assert edited.stderr.startswith("error: line 2 of the receipt")


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["trian.py"], 4, "did you mean train.py?"),
        (["--workers", "1,x", "train.py"], 2, "--workers '1,x' is not a list of whole numbers"),
        (["--workers", "0", "train.py"], 2, "every worker count must be at least 1"),
        (["--assignment", "2,a", "train.py"], 2, "assignment '2,a' is not a list of whole numbers"),
        (["--against", "horovod", "train.py"], 2, "--against 'horovod' is not known"),
        (["--against", "ddp", "--order", "tree", "train.py"], 2, "--order tree is not the order"),
        (["--order", "ring", "train.py"], 2, "order 'ring' is not one of tree, ddp"),
        (["--determinism", "D9", "train.py"], 2, "determinism 'D9' is not one of"),
        (["--determinism", "", "train.py"], 2, "determinism '' is not one of"),
        (["--receipt", "nowhere.jsonl", "train.py"], 4, "receipt 'nowhere.jsonl' is not there"),
        (["--receipt", ".", "train.py"], 4, "receipt '.' is a folder: name the receipt.jsonl in it"),
        (["--receipt", "train.py", "train.py"], 2, "line 1 of the receipt is no JSON object"),
        (
            ["--receipt", "x", "--steps", "3", "--threads", "2", "train.py"],
            2,
            "--steps, --threads and --receipt exclude",
        ),
        (["--receipt", "x", "--workers", "1,2", "train.py"], 2, "names 2 counts"),
    ],
)
def test_mistakes_cost_no_run(folder: Path, args: list[str], code: int, sentence: str) -> None:
    done = called(folder, "verify", *args)
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (folder / ".melodeon").exists()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--workers", "1,4"], "4 workers cannot share 3 virtual workers"),
        (["--assignment", "2,2"], "assignment 2,2 sums to 4, but the job has virtual_workers=3"),
        (["--workers", "3"], "leaves nothing to compare"),
    ],
)
def test_what_does_not_fit_the_job_is_said_as_soon_as_it_is_known(folder: Path, args: list[str], sentence: str) -> None:
    (folder / "joins.py").write_text(
        "import json, os, signal\n"
        "from melodeon.core.launch import Launch\n"
        "launch = Launch.from_env(os.environ)\n"
        "event = {'kind': 'joined', 'worker': launch.worker, 'virtual_workers': 3}\n"
        "os.write(launch.event_fd, (json.dumps(event) + chr(10)).encode())\n"
        "signal.pause()\n"
    )
    done = called(folder, "verify", *args, "joins.py")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert runs_in(folder) == []


def test_a_script_that_trains_nothing_is_told_so(folder: Path) -> None:
    (folder / "idle.py").write_text("print('nothing to do')\n")
    done = called(folder, "verify", "idle.py")
    assert done.returncode == 2
    assert "idle.py ended without a step, so there is nothing to compare" in done.stderr
    assert runs_in(folder) == []
