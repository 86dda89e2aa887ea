"""Partitions by virtual worker, in jobs that grow, shrink or lose workers: the same bits, each sample once an epoch."""

from collections import Counter
from pathlib import Path

import pytest

from tests.live.demand import NUM_SAMPLES, train, used
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import crew

EPOCHS = 8
SHORT = 4
STEPS_PER_EPOCH = 11


def once(epochs: int) -> Counter[tuple[int, int]]:
    return Counter((epoch, sample) for epoch in range(epochs) for sample in range(NUM_SAMPLES))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    ended = crew.run(train, [4], tmp_path_factory.mktemp("undisturbed") / "run", epochs=EPOCHS, mode="virtual").well()
    assert len(ended.states) == EPOCHS * STEPS_PER_EPOCH
    return list(ended.states.items())


def test_grows_shrinks_and_migrates(tmp_path: Path, undisturbed: list[tuple[int, str]]) -> None:
    with Conductor(tmp_path / "run", train, epochs=EPOCHS, pace_s=0.01, mode="virtual") as conductor:
        conductor.tour(grow_at=3, shrink_at=25)
        assert conductor.states == undisturbed
        assert Counter(used(tmp_path / "run")) == once(EPOCHS)


@pytest.mark.parametrize("point", ["step.begin", "step.agreed", "step.committed"])
def test_a_worker_is_killed_inside_a_step(point: str, tmp_path: Path, undisturbed: list[tuple[int, str]]) -> None:
    kill = f"{point}=kill@7/1"
    with Conductor(tmp_path / "run", train, failpoints=kill, epochs=SHORT, pace_s=0.005, mode="virtual") as conductor:
        conductor.bereave()
        assert conductor.states == undisturbed[: SHORT * STEPS_PER_EPOCH]
        assert Counter(used(tmp_path / "run")) == once(SHORT)
