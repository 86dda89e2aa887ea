"""Rows cross sockets between workers that share no memory: any number of rows, any size, and somebody who dies."""

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest
import torch

from melodeon.coord import failpoint
from melodeon.core import tree
from melodeon.core.assignment import Assignment
from melodeon.core.errors import WorkerLost
from melodeon.core.launch import Launch
from melodeon.runtime.folds import Fold, RingFold, TreeFold
from melodeon.runtime.group import Group
from melodeon.runtime.lanes import AloneLane, GlooLane
from tests.runtime.loop.crew import CONTEXT
from tests.runtime.threads import on_workers

SOON_S = 5.0
"""On a busy machine, too: the group's own timeout is five minutes."""


Drawn = list[list[torch.Tensor]]
"""By worker, then by row."""


def rows_of(worker: int, count: int, numel: int, turn: int) -> list[torch.Tensor]:
    """Numbers of very different sizes, so that every order of summation rounds in its own way."""
    draw = torch.Generator().manual_seed(100 * turn + worker)
    sizes = [10.0 ** torch.randint(-4, 4, (numel,), generator=draw) for _ in range(count)]
    return [torch.randn(numel, generator=draw) * size for size in sizes]


def folds(assignment: Assignment, numel: int) -> list[tuple[Fold, list[int]]]:
    """Both orders, and how many rows each worker has in them."""
    ranges, size = assignment.ranges(), assignment.virtual_workers
    covers = [tree.cover(ranks.start, ranks.stop, size) for ranks in ranges]
    spans = [span for cover in covers for span in cover]
    return [
        (TreeFold(spans, size), [len(cover) for cover in covers]),
        (RingFold(numel, 4, size), [len(ranks) for ranks in ranges]),
    ]


@pytest.mark.parametrize("numel", [1, 17, 40, 1000, 300_001])
@pytest.mark.parametrize("counts", [(1, 1, 1), (3, 2, 3), (1, 5, 1, 1)])
def test_everybody_gets_the_sum_of_all_rows_in_the_order(counts: Sequence[int], numel: int) -> None:
    """A bucket of few numbers has no slice for some workers; one reduction follows the other without a pause."""
    for fold, nums in folds(Assignment(tuple(counts)), numel):
        drawn = [[rows_of(worker, num, numel, turn) for worker, num in enumerate(nums)] for turn in range(3)]

        def work(
            group: Group, fold: Fold = fold, nums: Sequence[int] = nums, drawn: list[Drawn] = drawn
        ) -> list[torch.Tensor]:
            lane = GlooLane(group, [torch.empty(numel) for _ in range(nums[group.rank])], nums, fold)
            sums = []
            for everyone in drawn:
                for row, value in zip(lane.rows, everyone[group.rank], strict=True):
                    row.copy_(value)
                lane.reduce()
                sums.append(lane.rows[0].clone())
            return sums

        expected = []
        for everyone in drawn:
            alone = AloneLane([row.clone() for rows in everyone for row in rows], fold)
            alone.reduce()
            expected.append(alone.rows[0])
        for sums in on_workers(len(counts), work):
            assert all(
                torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(sums, expected, strict=True)
            )


def reduce_once(worker: int, size: int, meeting: str, strike: str, pipe: Connection) -> None:
    """One process: sum 8 MiB, more than sockets hold by themselves; says how it went and when."""
    torch.set_num_threads(1)
    os.environ[failpoint.VARIABLE] = f"step.folded={strike}"
    failpoint.identify(str(worker))
    group = Group.connect(Launch(worker=worker, num_workers=size, rendezvous=meeting))
    fold = TreeFold([(rank, rank + 1) for rank in range(size)], size)
    lane = GlooLane(group, rows_of(worker, 1, 2 << 20, 0), [1] * size, fold)
    try:
        lane.reduce()
        pipe.send(("no error", time.monotonic()))
    except WorkerLost as error:
        pipe.send((str(error), time.monotonic()))
    pipe.recv()  # stay, so that only the death of the other breaks connections


def reduce_struck(strike: str, meeting: Path, struck: int) -> None:
    """One of four workers is struck between its rows and its sum: whoever waits for the sum learns it at once."""
    size = 4
    pipes, processes = [], []
    for worker in range(size):
        here, there = CONTEXT.Pipe()
        processes.append(CONTEXT.Process(target=reduce_once, args=(worker, size, str(meeting), strike, there)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        assert wait([pipes[struck]], timeout=30), "the struck one has ended, or has said so"
        struck_at = time.monotonic()
        for worker, pipe in enumerate(pipes):
            if worker != struck:
                assert wait([pipe], timeout=30), f"worker {worker} says nothing"
                text, at = pipe.recv()
                assert "another worker of the job is gone" in text
                assert at - struck_at < SOON_S
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("killed", [0, 2])
def test_everybody_learns_at_once_that_one_was_killed_before_its_sum_came(killed: int, tmp_path: Path) -> None:
    reduce_struck(f"kill@1/{killed}", tmp_path / "meeting", killed)


@pytest.mark.parametrize("lost", [0, 3])
def test_everybody_learns_at_once_that_one_has_given_up_before_its_sum_came(lost: int, tmp_path: Path) -> None:
    """As one does that has lost somebody whose rows the others have: it lives, and so do its connections."""
    reduce_struck(f"lose@1/{lost}", tmp_path / "meeting", lost)
