"""A file that a script leaves open has all that was written to it, however the script was started and ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import melodeon

job = melodeon.join(virtual_workers=2, seed=0)
notes = open("notes", "w")

class Rows(torch.utils.data.Dataset):  # whose methods hold the script's variables
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(3) * index

model = torch.nn.Linear(3, 1)
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(Rows(), batch_size=2)
for epoch in job.epochs(1):
    for x in loader:
        job.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
        print("seen", job.virtual_rank, file=notes)
if sys.argv[1:]:
    raise ValueError(sys.argv[1])
"""


@pytest.mark.parametrize("fails", [False, True], ids=["to the end", "up to an error"])
@pytest.mark.parametrize("launch", [[], ["run"], ["run", "--static"]], ids=" ".join)
def test_an_open_file_is_flushed(tmp_path: Path, launch: list[str], fails: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MELODEON")}
    command = [sys.executable, *(["-m", "melodeon", *launch] if launch else []), "train.py", *["own"] * fails]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == fails, ended.stderr
    assert (tmp_path / "notes").read_text().splitlines() == ["seen 0", "seen 1"] * 2
