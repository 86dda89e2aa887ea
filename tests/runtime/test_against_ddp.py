"""The strongest claim: any number of workers gives the bits of a hand-written, stock DistributedDataParallel training.

Every parameter, buffer and optimizer tensor after every step, and every rank's loss in it, over two epochs of a dataset
that does not divide. The reference calls torch alone, and both are hashed by the test itself.
"""

import json
import multiprocessing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import ddp_scripts

STEPS = {3: 10, 4: 8}
"""Two epochs of ceil(ceil(50 / V) / 4) steps."""

JOIN_S = 90

# Forked from a process that has imported torch already: each is a process of its own and costs no import.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.runtime.ddp_scripts", "torch._dynamo", "melodeon.runtime.join"])


def train(target: Callable[..., None], places: list[tuple[Any, ...]]) -> None:
    """Run one process a place to its end; none outlives the test."""
    started = [processes.Process(target=target, args=place) for place in places]
    try:
        for process in started:
            process.start()
        for process in started:
            process.join(JOIN_S)
        assert [process.exitcode for process in started] == [0] * len(started)
    finally:
        for process in started:
            if process.is_alive():
                process.kill()


def read(folder: Path, num_processes: int) -> tuple[list[list[dict[str, str]]], dict[str, list[str]]]:
    """Every process's states, and the losses by rank."""
    notes = [json.loads((folder / f"notes-{process}.json").read_text()) for process in range(num_processes)]
    return [note["states"] for note in notes], {rank: seen for note in notes for rank, seen in note["losses"].items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Any]:
    @cache
    def run(case: str, world_size: int) -> Any:
        folder = tmp_path_factory.mktemp("plain")
        train(ddp_scripts.plain, [(case, rank, world_size, str(folder)) for rank in range(world_size)])
        return read(folder, world_size)

    return run


@pytest.mark.parametrize(
    "counts",
    [(3,), (1, 2), (1, 1, 1), (4,), (3, 1), (1, 2, 1)],
    ids=lambda counts: ",".join(map(str, counts)),
)
@pytest.mark.parametrize("case", ddp_scripts.CASES)
def test_every_step_equals_stock_ddp(
    case: str, counts: tuple[int, ...], tmp_path: Path, reference: Callable[[str, int], Any]
) -> None:
    train(ddp_scripts.ours, [(case, worker, counts, str(tmp_path)) for worker in range(len(counts))])
    expected_states, expected_losses = reference(case, sum(counts))
    states, losses = read(tmp_path, len(counts))
    assert losses == expected_losses
    assert len(expected_states[0]) == STEPS[sum(counts)]
    for worker_states in states:
        for step, (found, expected) in enumerate(zip(worker_states, expected_states[0], strict=True), start=1):
            apart = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
            assert not apart, f"step {step}"
    assert len({json.dumps(state) for state in states[0]}) == len(states[0]), "every step must change the state"
