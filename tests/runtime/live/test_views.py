"""Views, entered by real workers that the test conducts: the states are always those of an undisturbed run."""

import signal
from pathlib import Path

import pytest

from melodeon.coord.messages import Phase
from tests.runtime.live import cases
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import crew

ORDERS = ["tree", "ddp"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return {
        order: crew.run(cases.everything, [4], folder / order, order=order, pace_s=0.0, epochs=30).well().states
        for order in ORDERS
    }


def assert_same(states: dict[int, str], undisturbed: dict[int, str]) -> None:
    """Every step is there, with the undisturbed run's state."""
    assert list(states) == list(range(1, len(states) + 1))
    assert states == {step: undisturbed[step] for step in states}


@pytest.mark.parametrize("order", ORDERS)
def test_grows_shrinks_and_migrates(order: str, tmp_path: Path, undisturbed: dict[str, dict[int, str]]) -> None:
    with Conductor(tmp_path / "run", cases.everything, order=order, epochs=30) as conductor:
        conductor.tour(grow_at=2, shrink_at=8)
        assert_same(conductor.ended.states, undisturbed[order])
        assert [conductor.statuses[worker].phase for worker in (2, 3)] == [Phase.DONE, Phase.DONE]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "point", ["step.begin", "step.exchange", "step.header", "step.agreed", "step.commit", "step.committed"]
)
def test_a_worker_is_killed_inside_a_step(
    order: str, point: str, tmp_path: Path, undisturbed: dict[str, dict[int, str]]
) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints=f"{point}=kill@7/1", order=order) as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        conductor.entered(conductor.view([(0, 2), (1, 1), (2, 1)], planned=False))
        assert conductor.exit_code(1) == -signal.SIGKILL
        conductor.entered(conductor.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone"))
        conductor.done(0, 2)
        assert_same(conductor.ended.states, undisturbed[order])


def test_the_worker_that_writes_is_killed(tmp_path: Path, undisturbed: dict[str, dict[int, str]]) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints="step.committed=kill@7/0") as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        assert conductor.exit_code(0) == -signal.SIGKILL
        conductor.entered(conductor.view([(1, 4)], planned=False, reason="worker 0 is gone"))
        conductor.done(1)
        assert_same(conductor.ended.states, undisturbed["tree"])
