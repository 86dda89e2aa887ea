"""A script that trains on a partitioned set, as files or as streams, and writes down which samples it saw."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import melodeon
from melodeon.core.launch import Launch
from melodeon.data import Partitioned
from tests.runtime.loop import parts

V = 5


def write_shards(folder: Path, sizes: list[int]) -> None:
    """.npy shards whose rows are numbered in their first column."""
    folder.mkdir()
    generator, first = np.random.default_rng(3), 0
    for number, size in enumerate(sizes):
        rows = generator.standard_normal((size, parts.FEATURES + 1)).astype(np.float32)
        rows[:, 0] = np.arange(first, first + size)
        np.save(folder / f"shard-{number}.npy", rows)
        first += size


def make(folder: str, *, stream: bool, **options: object) -> Partitioned:
    """The shards as they are, or one row after the other."""
    shards = Partitioned.npy(folder, **options)
    if not stream:
        return shards

    def rows(name: str) -> Iterator[np.ndarray]:
        yield from np.load(Path(folder) / name)

    pairs = [(partition.name, partition.num_samples) for partition in shards.catalogue.partitions]
    return Partitioned(pairs, rows, **options)


def noisy(rows: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Augmentation that draws from two generators."""
    batch = torch.from_numpy(np.stack(rows))
    noise = torch.randn(len(rows), parts.FEATURES) + float(np.random.rand())
    return batch[:, 0], batch[:, 1:] + 0.1 * noise


def train(
    shards: str,
    stream: bool = False,
    order: str = "tree",
    block: int = 4,
    epochs: int = 2,
    store: str = "",
    mode: str = "virtual",
    **options: object,
) -> None:
    job = melodeon.join(virtual_workers=V, seed=3, order=order)
    model = parts.mlp()
    model, optimizer = job.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    assert isinstance(model, nn.Module)
    data = make(shards, stream=stream, block=block, mode=mode)
    loader = job.loader(data, batch_size=2, collate_fn=noisy, **{"shuffle": True, **options})
    if store:
        job.checkpoint(store, every=1)
    launch = Launch.from_env(os.environ)
    with (Path(str(launch.run_dir)) / f"seen-{launch.worker}.jsonl").open("a") as file:
        for epoch in job.epochs(epochs):
            for ids, x in loader:
                counted = job.course.beat.turn.weight > 0
                job.backward(cross_entropy(model(x), ids.long() % parts.CLASSES))
                optimizer.step()
                optimizer.zero_grad()
                row = {
                    "epoch": epoch,
                    "step": job.course.beat.step,
                    "rank": job.virtual_rank,
                    "ids": ids.int().tolist(),
                }
                file.write(json.dumps({**row, "counted": counted}) + "\n")
