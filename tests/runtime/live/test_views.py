"""Views, entered by real workers that the test conducts: the states are always those of an undisturbed run."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from melodeon.coord.messages import Phase
from melodeon.core.launch import Launch
from tests.runtime.descriptors import mapped_memory, open_memory
from tests.runtime.live import cases
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import crew

ORDERS = ["tree", "ddp"]
SHORT = 12 * 4
"""Steps of a case that is not told how many epochs."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """By order: (step, digest) of every step of 30 epochs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    runs = {
        order: crew.run(cases.everything, [4], folder / order, order=order, pace_s=0.0, epochs=30) for order in ORDERS
    }
    return {order: list(ended.well().states.items()) for order, ended in runs.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_grows_shrinks_and_migrates(order: str, tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]) -> None:
    with Conductor(tmp_path / "run", cases.everything, order=order, epochs=30) as conductor:
        conductor.tour(grow_at=2, shrink_at=8)
        assert conductor.states == undisturbed[order]
        assert [conductor.statuses[worker].phase for worker in (2, 3)] == [Phase.DONE, Phase.DONE]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "point", ["step.begin", "step.exchange", "step.header", "step.agreed", "step.commit", "step.committed"]
)
def test_a_worker_is_killed_inside_a_step(
    order: str, point: str, tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]
) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints=f"{point}=kill@7/1", order=order) as conductor:
        conductor.bereave()
        assert conductor.states == undisturbed[order][:SHORT]


@pytest.mark.parametrize("point", ["view.connect", "view.furnished"])
def test_the_others_train_on_while_a_newcomer_connects_and_makes_room(
    point: str, tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]
) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints=f"{point}=stop@1/1") as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        view = conductor.view([(0, 2), (1, 2)], planned=True)
        conductor.step(0, conductor.statuses[0].step + 8)
        assert conductor.statuses[0].generation < view.generation  # whoever is stopped is not ready
        conductor.kill(1, signal.SIGCONT)
        conductor.entered(view)
        conductor.done(0, 1)
        assert conductor.states == undisturbed["tree"][:SHORT]


@pytest.mark.parametrize("point", ["view.connect", "view.opened"])
def test_a_planned_view_that_cannot_be_connected_is_told_of_while_training_goes_on(
    point: str, tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]
) -> None:
    """And its newcomer, who may be waiting in it for the others still, can be given a seat in another planned one."""
    with Conductor(tmp_path / "run", cases.everything, failpoints=f"{point}=lose@2/0", epochs=30) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        view = conductor.view([(0, 2), (1, 2)], planned=True)
        conductor.until(lambda: conductor.statuses[0].broken == view.generation)
        told = conductor.statuses[0]
        assert told.generation < view.generation
        conductor.step(0, told.step + 4)
        conductor.entered(conductor.view([(0, 4)], planned=False, reason="view 2 cannot be entered"))
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=True))
        conductor.done(0, 1)
        assert conductor.states == undisturbed["tree"]


@pytest.mark.parametrize("point", ["view.furnished", "view.gathered"])
def test_a_view_that_was_not_entered_leaves_nothing_open_or_mapped(point: str, tmp_path: Path) -> None:
    with Conductor(tmp_path / "run", cases.uncollected, failpoints=f"{point}=kill@1/1") as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        conductor.view([(0, 2), (1, 2)], planned=True)
        assert conductor.exit_code(1) == -signal.SIGKILL
        conductor.entered(conductor.view([(0, 4)], planned=False, reason="worker 1 is gone"))
        # Given back in the background.
        conductor.until(lambda: not open_memory(conductor.pid(0)) and not mapped_memory(conductor.pid(0)))
        conductor.done(0)


@pytest.mark.parametrize("point", ["step.exchange", "step.folded"])
def test_the_memory_of_a_view_is_given_back_when_somebody_of_it_is_lost(point: str, tmp_path: Path) -> None:
    """What the others were waiting for has failed with an error; nobody keeps it, and with it what it was about."""
    with Conductor(tmp_path / "run", cases.uncollected, failpoints=f"{point}=kill@7/1", epochs=60) as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        conductor.entered(conductor.view([(0, 2), (1, 1), (2, 1)], planned=False))
        assert conductor.exit_code(1) == -signal.SIGKILL, conductor.log()
        conductor.entered(conductor.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone"))
        for worker in (0, 2):
            conductor.until(lambda worker=worker: len(mapped_memory(conductor.pid(worker))) == 2)  # type: ignore[misc]
        conductor.done(0, 2)


def test_loader_processes_hold_no_memory_of_the_view_that_they_were_forked_in(tmp_path: Path) -> None:
    with Conductor(tmp_path / "run", cases.forked) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        conductor.step(0, 2)
        (forked,) = Path(f"/proc/{conductor.pid(0)}/task/{conductor.pid(0)}/children").read_text().split()
        assert mapped_memory(conductor.pid(0))
        assert not mapped_memory(forked)
        assert not open_memory(forked)
        conductor.entered(conductor.view([(0, 4)], planned=True, leaving=[1]))
        conductor.tell(1, released=True)
        conductor.done(1, 0)


@pytest.mark.parametrize(("kill", "left"), [("step.committed=kill@10/1", 0), ("boundary.metrics=kill@1/0", 1)])
def test_every_step_has_one_row_of_means_whoever_is_lost_in_their_exchange(
    kill: str, left: int, tmp_path: Path
) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints=kill) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        assert conductor.exit_code(1 - left) == -signal.SIGKILL
        conductor.entered(conductor.view([(left, 4)], planned=False, reason="the other is gone"))
        conductor.done(left)
        assert [row["step"] for row in conductor.ended.lines("metrics.jsonl")] == list(range(1, SHORT + 1))


@pytest.mark.parametrize(
    ("point", "max_steps", "beyond"),
    [("boundary.left=lose@1/2", None, 2), ("boundary.left=lose@2/2", 6, 5)],
    ids=["at an epoch's end", "where the launcher lets no more follow"],
)
@pytest.mark.parametrize("record_states", [True, False])
def test_some_are_beyond_the_pass_when_another_is_held_back_at_its_end(
    point: str,
    max_steps: int | None,
    beyond: int,
    record_states: bool,
    tmp_path: Path,
    undisturbed: dict[str, list[tuple[int, str]]],
) -> None:
    """Their scripts have stepped the schedule and drawn since: what the boundary had to do is not done again."""
    os.mkfifo(tmp_path / "beyond")
    said = os.open(tmp_path / "beyond", os.O_RDWR)
    launch = Launch(record_states=record_states, max_steps=max_steps)
    options = {"failpoints": point, "launch": launch, "beyond": str(tmp_path / "beyond")}
    with closing(os.fdopen(said, "rb")) as file, Conductor(tmp_path / "run", cases.everything, **options) as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        seats = [(0, 2), (1, 1), (2, 1)]
        conductor.entered(conductor.view(seats, planned=False))
        file.read(beyond)
        conductor.until(lambda: conductor.statuses[2].broken == 1)
        conductor.entered(conductor.view(seats, planned=False, reason="worker 2 has lost somebody"))
        conductor.done(0, 1, 2)
        expected = undisturbed["tree"][: max_steps or SHORT]
        if record_states:
            assert conductor.states == expected
        else:
            ends = [entry for entry in expected if entry[0] % 4 == 0 or entry is expected[-1]]
            rows = conductor.ended.lines("receipt.jsonl")[1:]  # the first says what was run
            assert [(row["step"], row["digest"]) for row in rows] == ends


@pytest.mark.parametrize("worker", [0, 2])
@pytest.mark.parametrize("point", ["boundary.digest=lose@2", "boundary.left=lose@1"])
def test_what_a_break_left_open_is_done_before_the_script_goes_on(point: str, worker: int, tmp_path: Path) -> None:
    expected = crew.run(cases.broken_off, [4], tmp_path / "undisturbed", pace_s=0.0).well()
    with Conductor(tmp_path / "run", cases.broken_off, failpoints=f"{point}/{worker}") as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        seats = [(0, 2), (1, 1), (2, 1)]
        conductor.entered(conductor.view(seats, planned=False))
        conductor.until(lambda: conductor.statuses[worker].broken == 1)
        conductor.entered(conductor.view(seats, planned=False, reason=f"worker {worker} has lost somebody"))
        conductor.done(0, 1, 2)
        assert conductor.states == list(expected.states.items())
        assert conductor.statuses[0].step == 10


@pytest.mark.parametrize("newcomers", [(1,), (1, 2)])
def test_newcomers_begin_anew_when_the_only_holder_is_killed_in_the_middle_of_the_copy(
    newcomers: tuple[int, ...], tmp_path: Path
) -> None:
    """What has come by then lies where they built their own model."""
    expected = crew.run(cases.wide, [4], tmp_path / "undisturbed", pace_s=0.0).well()
    with Conductor(tmp_path / "run", cases.wide, failpoints="copy.given=kill@5/0") as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.step(0, 2)
        conductor.start(*newcomers)
        conductor.ready(*newcomers)
        shares = {1: [(0, 2), (1, 2)], 2: [(0, 2), (1, 1), (2, 1)]}[len(newcomers)]
        conductor.view(shares, planned=True)
        assert conductor.exit_code(0) == -signal.SIGKILL, conductor.log()
        left = [(worker, 4 // len(newcomers)) for worker in newcomers]
        conductor.entered(conductor.view(left, planned=False, reason="worker 0 is gone"))
        conductor.done(*newcomers)
        assert conductor.states == list(expected.states.items())


def test_who_has_read_a_checkpoint_begins_with_one_who_has_not(tmp_path: Path) -> None:
    """A worker was lost while all of them read it: nobody had come as far as to hold the job's state."""
    gate = tmp_path / "gate"
    expected = crew.run(cases.slow_to_load, [4], tmp_path / "undisturbed", gate=str(gate)).well()
    launch = Launch(record_states=True, checkpoint_dir=str(tmp_path / "kept"), max_steps=6)
    crew.run(cases.slow_to_load, [4], tmp_path / "begun", launch=launch, gate=str(gate)).well()
    launch = Launch(record_states=True, checkpoint_dir=str(tmp_path / "kept"))
    with Conductor(tmp_path / "run", cases.slow_to_load, launch=launch, gate=str(gate)) as conductor:
        conductor.start(0, 1, 2)
        conductor.ready(0, 1, 2)
        conductor.view([(0, 2), (1, 2)], planned=False)
        reached = gate.with_suffix(".reached")
        conductor.until(lambda: reached.exists() and reached.stat().st_size == 2)
        conductor.kill(1)
        view = conductor.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone")
        gate.touch()
        conductor.entered(view)
        conductor.done(0, 2)
        assert conductor.states == [entry for entry in expected.states.items() if entry[0] > 6]


def test_a_newcomer_that_is_to_pass_the_state_on_keeps_it_when_all_the_others_are_lost(
    tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]
) -> None:
    """Nobody begins anew as long as one has the whole state."""
    failpoints = "copy.admitted=stop@1/1,view.begin=kill@1/1"
    with Conductor(tmp_path / "run", cases.everything, failpoints=failpoints) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1, 2, 3)
        conductor.ready(1, 2, 3)
        conductor.view([(0, 1), (1, 1), (2, 1), (3, 1)], planned=True, apart=True)
        conductor.stopped(1)  # it has the state, and the third waits for it
        for worker in (0, 2, 3):
            conductor.kill(worker)
            assert conductor.exit_code(worker) == -signal.SIGKILL
        view = conductor.view([(1, 4)], planned=False, reason="the others are gone")
        conductor.kill(1, signal.SIGCONT)
        conductor.entered(view)
        conductor.done(1)
        assert conductor.states == undisturbed["tree"][:SHORT]


def test_what_a_boundary_had_to_do_is_done_by_a_newcomer_that_is_left_alone_with_it(
    tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]
) -> None:
    """It has the state of a step whose digest was not written yet, and no view to train in."""
    failpoints = "boundary.digest=lose@6/0,view.copied=kill@2/0"
    with Conductor(tmp_path / "run", cases.everything, failpoints=failpoints, order="ddp") as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.until(lambda: conductor.statuses[0].broken == 1)
        conductor.start(1)
        conductor.ready(1)
        conductor.view([(0, 2), (1, 2)], planned=False, reason="worker 0 has lost somebody")
        assert conductor.exit_code(0) == -signal.SIGKILL, conductor.log()
        conductor.until(lambda: conductor.statuses[1].broken == conductor.generation)
        conductor.entered(conductor.view([(1, 4)], planned=False, reason="worker 0 is gone"))
        conductor.done(1)
        assert conductor.states == undisturbed["ddp"][:SHORT]


def test_who_got_the_first_step_of_a_pass_from_another_is_not_beyond_it(tmp_path: Path) -> None:
    """It is beyond the pass before, whose end it has seen; what the step's boundary has to do is done again all the
    same.
    """
    expected = crew.run(cases.frozen_later, [4], tmp_path / "undisturbed").well()
    failpoints = "step.agreed=lose@5/1,boundary.digest=lose@5/0"
    with Conductor(tmp_path / "run", cases.frozen_later, failpoints=failpoints) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        seats = [(0, 2), (1, 2)]
        conductor.entered(conductor.view(seats, planned=False))
        conductor.until(lambda: conductor.statuses[1].broken == 1)
        conductor.entered(conductor.view(seats, planned=False, reason="worker 1 has lost somebody"))
        conductor.until(lambda: conductor.statuses[0].broken == 2)
        conductor.entered(conductor.view(seats, planned=False, reason="worker 0 has lost somebody"))
        conductor.done(0, 1)
        assert conductor.states == list(expected.states.items())


def test_a_state_is_asked_for_on_the_script_s_own_thread(tmp_path: Path) -> None:
    """Another one may come to it when its view has been given up, and a step of the next one is under way."""
    with Conductor(tmp_path / "run", cases.asked, threads=str(tmp_path / "threads")) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=True))
        conductor.done(0, 1)
        assert {*(tmp_path / "threads").read_text().split()} == {"MainThread"}


def test_a_newcomer_receives_expanded_buffers(tmp_path: Path) -> None:
    expected = crew.run(cases.masked, [2, 2], tmp_path / "undisturbed", pace_s=0.0).well()
    with Conductor(tmp_path / "run", cases.masked) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=True))
        conductor.done(0, 1)
        assert conductor.states == list(expected.states.items())


@pytest.mark.parametrize("max_steps", [6, None], ids=["by the launcher", "on request"])
def test_who_comes_at_the_boundary_where_the_training_ends_ends_with_the_others(
    max_steps: int | None, tmp_path: Path
) -> None:
    """It has not digested the last state with them."""
    (ready := tmp_path / "ready").mkdir()
    (ready / "5").touch()
    (ready / "6").touch()
    expected = crew.run(cases.held, [4], tmp_path / "undisturbed", files=str(ready)).well()
    launch = Launch(record_states=True, max_steps=max_steps)
    connected = "view.connected=stop@1/1"
    with Conductor(tmp_path / "run", cases.held, launch=launch, failpoints=connected, files=str(tmp_path)) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.step(0, 4)
        view = conductor.view([(0, 2), (1, 2)], planned=True)
        conductor.until(lambda: conductor.statuses[0].notice == 2)
        (tmp_path / "5").touch()  # the view is connected while the next step lasts
        conductor.stopped(1)
        if max_steps is None:
            conductor.tell(0, stop=True)
            conductor.until(lambda: conductor.statuses[0].notice == 3)
        conductor.kill(1, signal.SIGCONT)
        (tmp_path / "6").touch()
        conductor.entered(view)
        conductor.done(0, 1)
        assert conductor.states == list(expected.states.items())[:6]
        assert conductor.statuses[0].digest == conductor.statuses[1].digest == conductor.states[-1][1]


def test_a_layer_that_is_frozen_where_the_view_changes_stays_as_it_is(tmp_path: Path) -> None:
    expected = crew.run(cases.frozen_later, [4], tmp_path / "undisturbed").well()
    with Conductor(tmp_path / "run", cases.frozen_later, failpoints="boundary.digest=lose@6/0") as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.until(lambda: conductor.statuses[0].broken == 1)
        conductor.entered(conductor.view([(0, 4)], planned=False, reason="worker 0 has lost somebody"))
        conductor.done(0)
        assert conductor.states == list(expected.states.items())


def test_the_worker_that_writes_is_killed(tmp_path: Path, undisturbed: dict[str, list[tuple[int, str]]]) -> None:
    with Conductor(tmp_path / "run", cases.everything, failpoints="step.committed=kill@7/0") as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 2), (1, 2)], planned=False))
        assert conductor.exit_code(0) == -signal.SIGKILL
        conductor.entered(conductor.view([(1, 4)], planned=False, reason="worker 0 is gone"))
        conductor.done(1)
        assert conductor.states == undisturbed["tree"][:SHORT]


def test_a_worker_that_is_slow_to_read_its_data_is_busy_with_it(tmp_path: Path) -> None:
    """Whoever looks for slow workers must see it, also where each runs one virtual worker."""
    with Conductor(tmp_path / "run", cases.slow_data, seconds=0.05) as conductor:
        conductor.start(0, 1)
        conductor.ready(0, 1)
        conductor.entered(conductor.view([(0, 1), (1, 1)], planned=False))
        conductor.done(0, 1)
        assert [len(conductor.statuses[worker].busy_s) for worker in (0, 1)] == [10, 10]
        assert all(busy_s >= 0.05 for worker in (0, 1) for busy_s in conductor.statuses[worker].busy_s)
