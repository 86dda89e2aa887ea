"""What is wrong only at a script's end gets one sentence and a non-zero exit too, and a last checkpoint is written."""

import os
import subprocess
import sys
from pathlib import Path
from signal import SIGCHLD, signal
from unittest.mock import create_autospec

import pytest

from melodeon.core.launch import Launch
from melodeon.runtime.join import _ErrorHook
from melodeon.runtime.journal import Journal

LEAVES = """
import sys
import torch
import melodeon

def train():
    job = melodeon.join(virtual_workers=2, seed=0)
    model = torch.nn.Linear(3, 1)
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(torch.randn(8, 3), batch_size=2)
    job.checkpoint(sys.argv[2], every=5)
    for epoch in job.epochs(1):
        for x in loader:
            job.backward(model(x).mean())
            if sys.argv[1] == "inside":
                return
            optimizer.step()
            optimizer.zero_grad()
            if job.committed:
                if sys.argv[1] == "no folder":
                    open(sys.argv[2], "w").close()
                return

train()
print("trained", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("after a step", 0, ""),
        ("inside", 2, "error: the loop was left inside step 0, at virtual worker 0"),
        ("no folder", 1, "error: checkpoint folder kept is a file"),
    ],
)
@pytest.mark.parametrize("launched", [False, True])
def test_what_is_wrong_at_the_scripts_end_is_one_sentence(
    tmp_path: Path, how: str, code: int, sentence: str, launched: bool
) -> None:
    (tmp_path / "train.py").write_text(LEAVES)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MELODEON")}
    launch = ["-m", "melodeon", "run", "--workers", "1"] if launched else []
    command = [sys.executable, *launch, "train.py", how, "kept"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "trained" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code
    assert ended.stderr.count("error: ") == (code != 0)
    assert sentence in ended.stderr
    assert (tmp_path / "kept" / "step-0000000001.melodeon").exists() == (how == "after a step")


def test_an_error_is_shown_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told ends the workers: what one of them has not printed by then is in no log."""
    seen: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: seen.append("shown"))
    journal = create_autospec(Journal, instance=True)
    journal.event.side_effect = lambda kind, **_: seen.append(kind)
    _ErrorHook(journal, Launch())
    error = ValueError("the script's own")
    sys.excepthook(ValueError, error, None)
    assert seen == ["shown", "error"]


def test_a_loaders_end_that_is_told_while_an_error_is_does_not_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

    shown: list[object] = []
    monkeypatch.setattr(
        sys, "excepthook", lambda _kind, error, _trace: (os.kill(os.getpid(), SIGCHLD), shown.append(error))
    )
    _ErrorHook(create_autospec(Journal, instance=True), Launch())
    error = ValueError("the script's own")
    before = signal(SIGCHLD, told)
    try:
        sys.excepthook(ValueError, error, None)
    finally:
        signal(SIGCHLD, before)
    assert shown == [error]
