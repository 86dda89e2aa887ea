"""What a launcher may say about a script: when it ends, how many virtual workers it has, where checkpoints are kept."""

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.runtime.limits import Until
from tests.runtime.loop import limits_cases as cases
from tests.runtime.loop.crew import Ended, run

SPLITS = [(5,), (2, 3), (1, 1, 3)]


@cache
def whole() -> tuple[dict[int, str], dict[int, float]]:
    """State and loss by step of the whole run."""
    with TemporaryDirectory() as folder:
        ended = run(cases.train, (5,), Path(folder) / "run").well()
        return ended.states, {row["step"]: row["loss"] for row in ended.lines("metrics.jsonl")}


def aim() -> tuple[str, int]:
    """A loss that is reached in the middle of an epoch for the first time, and the step."""
    _, losses = whole()
    best = float("inf")
    records = []
    for step, loss in sorted(losses.items()):
        if loss < best:
            best = loss
            records.append(step)
    step = next(step for step in records if step > 5 and step % 5)
    return f"loss <= {losses[step]!r}", step


def ended_at(step: int, ended: Ended) -> None:
    states, _ = whole()
    assert ended.well().states == {s: digest for s, digest in states.items() if s in ended.states}
    assert max(ended.states) == step
    end = ended.events("end")[0]
    assert end["step"] == step
    if step % 5:  # at the end of an epoch its number has grown since
        assert end["digest"] == states[step]


# -- until --


@pytest.mark.parametrize("counts", SPLITS)
def test_a_run_ends_after_the_first_step_that_is_good_enough(counts: tuple[int, ...], tmp_path: Path) -> None:
    until, step = aim()
    ended = run(cases.train, counts, tmp_path / "run", launch=Launch(record_states=True, until=until))
    ended_at(step, ended)
    assert ended.said[0]["step"] == step
    assert ended.lines("metrics.jsonl")[-1]["step"] == step
    assert {end["reached"] for end in ended.events("end")} == {until}


def test_a_run_that_was_stopped_before_ends_after_the_same_step(tmp_path: Path) -> None:
    until, step = aim()
    kept = str(tmp_path / "kept")
    for number, limit in enumerate([3, step - 1]):
        launch = Launch(record_states=True, until=until, max_steps=limit, checkpoint_dir=kept)
        ended_at(limit, run(cases.train, SPLITS[number], tmp_path / str(limit), launch=launch))
    launch = Launch(record_states=True, until=until, checkpoint_dir=kept)
    ended_at(step, run(cases.train, SPLITS[2], tmp_path / "rest", launch=launch))
    # Started once more it has nothing to do; with a higher aim it goes on.
    again = run(cases.train, SPLITS[0], tmp_path / "again", launch=launch).well()
    assert again.said[0]["step"] == step
    assert again.events("end")[0]["digest"] == whole()[0][step]
    assert not again.notes[1:]
    further = Launch(record_states=True, until="loss < 0", checkpoint_dir=kept)
    ended_at(20, run(cases.train, SPLITS[1], tmp_path / "further", launch=further))


def test_what_is_logged_after_the_update_cannot_decide(tmp_path: Path) -> None:
    launch = Launch(until="loss < 0.5")
    ended = run(cases.train, (5,), tmp_path / "run", launch=launch, log="after")
    assert ended.codes == (2,)
    assert "call it before optimizer.step()" in ended.errors[0]


def test_a_metric_that_is_never_logged_is_said(tmp_path: Path) -> None:
    ended = run(cases.train, (2, 3), tmp_path / "run", launch=Launch(until="accuracy > 0.9", max_epochs=1)).well()
    assert ended.said[0]["step"] == 5
    assert ended.notes == [
        "until='accuracy > 0.9' was not looked at: no step called job.log(accuracy=...)",
    ]
    assert [note["warning"] for note in ended.events("note")] == [True]


def test_a_metric_that_is_not_logged_in_the_first_epoch_is_said_then(tmp_path: Path) -> None:
    ended = run(cases.train, (2, 3), tmp_path / "run", launch=Launch(until="accuracy > 0.9", max_epochs=3)).well()
    assert ended.notes == [
        "until='accuracy > 0.9' could not be looked at yet: no step so far called job.log(accuracy=...)",
        "until='accuracy > 0.9' was not looked at: no step called job.log(accuracy=...)",
    ]


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [("loss < 0.5", 0.4, 0.5), ("loss <= 0.5", 0.5, 0.6), ("acc > .5", 0.6, 0.5), ("acc>=1e-1", 0.1, float("nan"))],
)
def test_relations(text: str, good: float, bad: float) -> None:
    assert Until(text).holds(good)
    assert not Until(text).holds(bad)


@pytest.mark.parametrize("text", ["loss", "loss = 0.1", "loss < nan", "loss < x", "< 1"])
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"loss < 0\.1"):
        Until(text)


# -- epochs --


@pytest.mark.parametrize(("allowed", "epochs"), [(2, 2), (9, 4)])
def test_the_fewer_epochs_count(allowed: int, epochs: int, tmp_path: Path) -> None:
    launch = Launch(record_states=True, max_epochs=allowed)
    ended = run(cases.train, (3, 2), tmp_path / "run", launch=launch)
    ended_at(5 * epochs, ended)
    begin = ended.events("begin")[0]
    assert (begin["total_steps"], begin["steps_per_epoch"]) == (5 * epochs, 5)
    assert ended.events("step")[-1]["epoch"] == epochs - 1


# -- virtual workers --


def test_the_launcher_says_how_many_virtual_workers_where_the_script_does_not(tmp_path: Path) -> None:
    launch = Launch(record_states=True, virtual_workers=5, max_steps=3)
    ended = run(cases.train, (3, 2), tmp_path / "run", launch=launch, virtual_workers=None)
    ended_at(3, ended)
    assert ended.said[0]["virtual_workers"] == 5


def test_two_numbers_of_virtual_workers_are_refused(tmp_path: Path) -> None:
    ended = run(cases.train, (5,), tmp_path / "run", launch=Launch(virtual_workers=8))
    assert ended.codes == (2,)
    assert "virtual_workers=5 and was started with 8" in ended.errors[0]


def test_no_number_of_virtual_workers_is_refused(tmp_path: Path) -> None:
    ended = run(cases.train, (5,), tmp_path / "run", virtual_workers=None)
    assert ended.codes == (2,)
    assert "melodeon.join(virtual_workers=8)" in ended.errors[0]


# -- checkpoints --


def stored(folder: Path) -> list[int]:
    return sorted(int("".join(filter(str.isdigit, path.name))) for path in folder.iterdir())


def test_a_script_that_keeps_none_is_kept_for_when_it_ends(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    launch = Launch(record_states=True, checkpoint_dir=str(kept), max_steps=7)
    ended_at(7, run(cases.train, (5,), tmp_path / "begun", launch=launch))
    assert stored(kept) == [7]
    launch = Launch(record_states=True, checkpoint_dir=str(kept), checkpoint_every=4)
    ended = run(cases.train, (1, 4), tmp_path / "rest", launch=launch)
    ended_at(20, ended)
    assert min(ended.states) == 8
    assert [event["step"] for event in ended.events("checkpoint")] == [8, 12, 16, 20]


def test_the_launcher_says_how_often(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    launch = Launch(checkpoint_dir=str(kept), checkpoint_every=3, max_steps=7)
    ended = run(cases.train, (5,), tmp_path / "run", launch=launch, kept=str(tmp_path / "own")).well()
    assert [event["step"] for event in ended.events("checkpoint")] == [3, 6, 7]
    assert not (tmp_path / "own").exists()


def test_nothing_is_kept_for_a_run_that_does_not_go_on(tmp_path: Path) -> None:
    launch = Launch(checkpoint_dir=str(tmp_path / "kept"), max_steps=2, resume=False)
    run(cases.train, (5,), tmp_path / "run", launch=launch).well()
    assert not (tmp_path / "kept").exists()


# -- records --


@pytest.mark.parametrize(("every", "steps"), [(None, [5, 7]), (3, [3, 6, 7]), (0, [7])])
def test_how_often_the_receipt_is_written_and_that_nothing_else_is(
    every: int | None, steps: list[int], tmp_path: Path
) -> None:
    """5 steps an epoch. Operators and states are recorded only for who asks."""
    ended = run(cases.train, (2, 3), tmp_path / "run", launch=Launch(receipt_every=every, max_steps=7)).well()
    assert [row["step"] for row in ended.lines("receipt.jsonl")[1:]] == steps
    assert not {"ops", "states.jsonl"} & {path.name for path in ended.folder.iterdir()}


# -- cores --


def test_a_worker_stays_on_the_core_of_its_slot(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    ended = run(cases.train, (2, 3), tmp_path / "run", launch=Launch(pin=True, max_steps=1)).well()
    found = [json.loads((ended.folder / f"cores-{worker}.json").read_text()) for worker in (0, 1)]
    assert found == [[cores[0]], [cores[1 % len(cores)]]]


def test_threads_get_a_core_each(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    launch = Launch(pin=True, threads=2, max_steps=1)
    ended = run(cases.train, (5,), tmp_path / "run", launch=launch).well()
    assert json.loads((ended.folder / "cores-0.json").read_text()) == cores[:2]
