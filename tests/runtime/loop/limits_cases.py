"""Scripts that leave something to their launcher: when to end, how many virtual workers, where to keep checkpoints."""

import json
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import melodeon
from tests.runtime.loop import parts
from tests.runtime.loop.crew import tell


def train(
    virtual_workers: int | None = 5, epochs: int = 4, log: str = "before", kept: str = "", every: int = 2
) -> None:
    """5 steps an epoch. `log` says where a step logs its loss: before the update, after it, or nowhere."""
    given = {} if virtual_workers is None else {"virtual_workers": virtual_workers}
    job = melodeon.join(seed=3, **given)
    model = parts.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(parts.data(50), batch_size=2, shuffle=True)
    if kept:
        job.checkpoint(kept, every=every)
    for _ in job.epochs(epochs):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            job.backward(loss)
            if log == "before":
                job.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if log == "after":
                job.log(loss=loss)
    tell({"step": job.step, "virtual_workers": job.virtual_workers})
    with (Path(job.run_dir) / f"cores-{job.worker}.json").open("w") as file:
        json.dump(sorted(os.sched_getaffinity(0)), file)
