"""A small elastic job, run to its end: `python live_job.py NAME`, in the folder and with the registry of the caller."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from melodeon.backends.elastic import Elastic, run_elastic
from melodeon.coord.master_state import JobConfig
from melodeon.core.launch import Launch

SCRIPT = """
import melodeon, torch
from torch.nn import functional
from torch.utils.data import TensorDataset
job = melodeon.join(virtual_workers=4, seed=0)
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.wrap(model, optimizer)
loader = job.loader(TensorDataset(torch.arange(600.0).view(100, 6).cos(), torch.arange(100) % 3), batch_size=5)
print("worker", job.worker, "is here", flush=True)
for epoch in job.epochs(1_000_000):
    for x, y in loader:
        job.backward(functional.cross_entropy(model(x), y))
        optimizer.step(); optimizer.zero_grad()
"""


def main(name: str) -> int:
    """Run it; the exit code is the job's."""
    folder = Path(".melodeon/runs") / name
    folder.mkdir(parents=True)
    Path("train.py").write_text(SCRIPT)
    facts = {"id": name, "created": datetime.now(UTC).isoformat(), "script": "train.py", "pid": os.getpid()}
    (folder / "run.json").write_text(json.dumps({**facts, "num_workers": 2, "status": "running"}))
    absolute = str(folder.resolve())
    launch = Launch(elastic=True, determinism="D1", threads=1, run_dir=absolute, runs_root=str(Path(absolute).parent))
    config = JobConfig(job=name, workers=2, restarts=1, straggler_factor=0)
    return run_elastic(["train.py"], launch, folder, Elastic(job=config, agents=2, slots=4)).exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
