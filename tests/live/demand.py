"""Trains on partitions in either mode, and writes down which samples each worker took for which step of which view."""

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import melodeon
from melodeon.data import Partitioned

SIZES = (7, 1, 12, 0, 9, 4, 4, 15, 3, 8, 8, 2, 11, 5, 6, 10, 1, 13, 7, 4)
FIRSTS = [sum(SIZES[:number]) for number in range(len(SIZES))]
NUM_SAMPLES = sum(SIZES)


def rows(name: str) -> Any:
    """Sample k of the set is k; every second partition is a stream."""
    number = int(name[1:])
    found = [torch.tensor(float(FIRSTS[number] + k)) for k in range(SIZES[number])]
    return found if number % 2 else iter(found)


def train(
    epochs: int = 3,
    pace_s: float = 0.0,
    checkpoints: str = "",
    leave_at: int = -1,
    mode: Literal["virtual", "on_demand"] = "on_demand",
) -> None:
    """One worker's part. With `leave_at` the loop is left by `break` in the middle of that epoch."""
    torch.set_num_threads(1)
    job = melodeon.join(virtual_workers=4, seed=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = job.wrap(model, optimizer)
    names = [(f"p{number}", size) for number, size in enumerate(SIZES)]
    data = Partitioned(names, rows, mode=mode, block=4)
    loader = job.loader(data, batch_size=3, shuffle=True)
    if checkpoints:
        job.checkpoint(checkpoints, every=5)
    idle = threading.Event()
    with (Path(job.run_dir) / f"taken-{os.getpid()}.jsonl").open("a") as file:

        def note(kind: str, **values: object) -> None:
            # The view is no business of a script's; here it tells a step that was given up from the one that counts.
            view = 0 if job.course.elastic is None else job.course.elastic._views.generation
            file.write(json.dumps({"kind": kind, "step": job.step, "view": view, "epoch": job.epoch, **values}) + "\n")
            file.flush()

        for epoch in job.epochs(epochs):
            for number, batch in enumerate(loader):
                if epoch == leave_at and number // len(job.course.ranks) == 3:
                    break  # a batch was drawn for this step, which is not begun
                idle.wait(pace_s)
                assert job.course.beat.turn is not None
                if job.course.beat.turn.weight:
                    note("taken", samples=[int(sample) for sample in batch])
                job.backward(model(batch[:, None]).square().mean())
                optimizer.step()
                if job.committed:
                    note("committed", done=job.step)
                optimizer.zero_grad()


def used(folder: Path) -> list[tuple[int, int]]:
    """(epoch, sample) of all that committed steps used, in the order of steps."""
    rows = [json.loads(line) for path in sorted(folder.glob("taken-*.jsonl")) for line in path.read_text().splitlines()]
    counted: dict[int, int] = {}
    for row in rows:
        if row["kind"] == "committed":
            # Of two views in which a step was committed, the earlier one was lost with the worker that had come so far.
            counted[row["done"] - 1] = max(row["view"], counted.get(row["done"] - 1, 0))
    taken = [row for row in rows if row["kind"] == "taken" and counted.get(row["step"]) == row["view"]]
    return [(row["epoch"], sample) for row in sorted(taken, key=lambda row: row["step"]) for sample in row["samples"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--checkpoints", default="")
    options = parser.parse_args()
    train(options.epochs, options.pace, options.checkpoints)
