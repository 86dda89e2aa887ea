"""`melodeon serve` as a person runs it: a process of its own, with the real fleet."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from melodeon.cli.cluster import there
from melodeon.cli.help import OWN_HEADINGS
from melodeon.cli.jobfile import name_of, read_job
from melodeon.cli.submit import deadline_text
from melodeon.cli.times import away, flag
from melodeon.core.service import OVER, JobInfo, Phase
from melodeon.core.spec import moment
from tests.cli.conftest import Melodeon

TRAIN = """
import melodeon, torch
from torch.utils.data import TensorDataset
job = melodeon.join(virtual_workers=2, seed=0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.wrap(model, optimizer)
loader = job.loader(TensorDataset(torch.arange(600.0).view(100, 6).cos(), torch.arange(100) % 3), batch_size=5)
for epoch in job.epochs(10**6):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        job.backward(loss)
        job.log(loss=loss)
        optimizer.step(); optimizer.zero_grad()
    print("epoch", epoch, "\\033[2J", flush=True)
"""


@contextlib.contextmanager
def served(*args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "melodeon", "serve", "--json", "--port", "0", "--devices", "2", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(30)


def test_it_says_where_it_is_and_is_found(place: Path, melodeon: Melodeon) -> None:
    with served() as (process, said):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/login\?token=[\w-]{40,}", said["login_url"])
        assert said["nodes"] == [{"id": "node000", "type": "cpu", "devices": 2}]
        assert melodeon("policy")[1].startswith("policy     elasticflow")
        again = subprocess.run(
            [sys.executable, "-m", "melodeon", "serve", "--port", "0"], capture_output=True, text=True, timeout=60
        )
        assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1), again.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert there() is None
    assert melodeon("ps")[1].startswith("no job runs on this machine")


def test_a_policy_that_was_set_while_it_served_holds_on_and_is_named(place: Path, melodeon: Melodeon) -> None:
    with served() as (process, said):
        assert melodeon("policy", "fifo")[0] == 0
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read() if process.stderr else None) == (0, "")
    with served("--policy", "edf") as (process, said):
        assert said["policy"] == "fifo"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read().startswith("note: policy fifo was set while this cluster served before")


def test_its_screen_fits_and_warns_of_strangers(place: Path) -> None:
    command = [sys.executable, "-m", "melodeon", "serve", "--port", "0", "--host", "0.0.0.0", "--cluster", "2x2:cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "serving    4 devices (cpu) on 2 nodes, policy elasticflow\n"
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr.readline().startswith("note: others than this machine can reach 0.0.0.0")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--port", "70000"], "--port 70000 must be from 0"),
        (["--policy", "elasticflwo"], "elasticflow"),
        (["--devices", "0"], "--devices 0 leaves nothing to train on"),
        (["--devices", "2", "--cluster", "1x2:cpu"], "--devices and --cluster both say what there is"),
        (["--topology", "none.yaml"], "none.yaml cannot be read"),
        (["--root", "nowhere"], "--root 'nowhere' cannot be used"),
        (["--quota", "-1"], "active_jobs=-1 must not be negative"),
        (["--margin", "2"], "margin 2.0 must be from 0 to below 1"),
    ],
)
def test_a_wrong_call_is_one_sentence(place: Path, melodeon: Melodeon, args: list[str], sentence: str) -> None:
    code, out, err = melodeon("serve", "--port", "0", *args)
    assert (code in (2, 4), out, err.count("\n")) == (True, "", 1), err
    assert sentence in err


def test_options_with_headings_of_their_own_exist(place: Path, melodeon: Melodeon) -> None:
    for command, headings in OWN_HEADINGS.items():
        out = melodeon(command, "--help")[1]
        for title, options in headings.items():
            section = out.partition(f"{title}:\n")[2].partition("\n\n")[0]
            assert [option for option in options if f"{option} " not in section] == []


@pytest.mark.parametrize("seconds", [0.0, 1.5, 89.2, 599.0, 601.0, 3599.5, 3600.0, 7500.0, 90_000.0])
def test_a_quoted_deadline_is_never_shorter(seconds: float) -> None:
    assert 0 < moment(flag(seconds), 0.0) - seconds <= 61


def test_moments_in_words() -> None:
    assert (away(None, 0.0), away(90.0, 30.0), away(30.0, 90.0)) == ("-", "in 1 min", "1 min ago")


@pytest.mark.parametrize("phase", list(Phase))
def test_only_what_trained_to_its_end_has_finished(phase: Phase) -> None:
    over = phase in OVER
    when = {"finished_at": 30.0} if over else {"planned_finish_at": 30.0}
    job = JobInfo(id="a-1", name="a", user="ann", phase=phase, submitted_at=0.0, deadline_at=90.0, **when)  # type: ignore[arg-type]
    said = deadline_text(job, 40.0).partition("; ")[2]
    if phase is Phase.DONE:
        assert said == "finished 1 min before it"
    else:
        assert said == ("" if over else "planned to finish 1 min before it")


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("train.py --lr 1", "train"),
        ("deep/My_Net.v2.py", "my-net-v2"),
        ("-m pkg.train x", "train"),
        ("ünder.py", "nder"),
        ("-.py", "job"),
    ],
)
def test_a_job_is_named_after_its_script(run: str, name: str) -> None:
    assert name_of(run) == name


def test_a_folder_is_the_files_or_where_the_flag_was_given(place: Path) -> None:
    (place / "deep").mkdir()
    (place / "deep/job.yaml").write_text("name: a\nrun: x.py\nsteps: 1\nworkdir: sub\n")
    assert read_job("deep/job.yaml", {}).workdir == str(place / "deep/sub")
    assert read_job("deep/job.yaml", {"workdir": "here"}).workdir == str(place / "here")
    assert read_job(None, {"run": "x.py", "steps": 1}).workdir == str(place)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_outlives_the_controller_and_ends_with_the_bits_of_a_run(place: Path, melodeon: Melodeon) -> None:
    (place / "train.py").write_text(TRAIN)
    flags = ("--run", "train.py", "--steps", "3000", "--workers", "1-2")
    with served() as (process, _):
        assert melodeon("submit", *flags)[0] == 0
        process.kill()
        process.wait()
    with served():
        code, out, _ = melodeon("wait", "train-1", "-o", "json")
        found = json.loads(out)
        assert (code, found["phase"], found["incarnation"]) == (0, "done", 1)
        printed = melodeon("logs", "train")[1]
        assert ("epoch 0" in printed, "\033" in printed) == (True, False)
        assert melodeon("trace", "train-1", "-o", "trace.json")[0] == 0
    command = ["run", "--quiet", "--json", "--steps", "3000", "train.py"]
    alone = subprocess.run([sys.executable, "-m", "melodeon", *command], capture_output=True, text=True, check=True)
    assert json.loads(alone.stdout.splitlines()[-1])["digest"] == found["digest"]
