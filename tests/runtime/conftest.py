import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import melodeon
from melodeon.core.launch import Launch
from tests.runtime.joined import Join


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Join in this process as a job of one worker, and leave nothing behind."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("melodeon.runtime.join.atexit", types.SimpleNamespace(register=lambda _: None))
    torch.set_num_threads(1)
    for name, value in Launch(run_dir=str(tmp_path)).to_env().items():
        monkeypatch.setenv(name, value)
    jobs: list[melodeon.Job] = []

    def join_here(**options: Any) -> melodeon.Job:
        jobs.append(melodeon.join(**{"virtual_workers": 4, "seed": 0, **options}))
        return jobs[-1]

    yield join_here
    for job in jobs:
        job.course.broken = True
        job.close()
    torch.use_deterministic_algorithms(False)
