"""A job that was ended anywhere and started again on any number of workers goes on with the undisturbed run's bits."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from melodeon.core.launch import Launch
from tests.runtime.loop import resume_cases as cases
from tests.runtime.loop.crew import Ended, run

KEEP = Launch(record_states=True)
ORDERS = ("tree", "ddp")
LAST = 3 * cases.STEPS_PER_EPOCH


@cache
def undisturbed(case: str, order: str, **options: object) -> dict[int, str]:
    """Digests of the same script without checkpoints, on one worker."""
    with TemporaryDirectory() as folder:
        ended = run(
            getattr(cases, case), (5,), Path(folder) / "run", launch=KEEP, order=order, kept="-", every=0, **options
        )
        return ended.well().states


def resume(
    case: str, order: str, counts: tuple[int, ...], tmp_path: Path, name: str = "again", **options: object
) -> Ended:
    return run(
        getattr(cases, case), counts, tmp_path / name, launch=KEEP, order=order, kept=str(tmp_path / "kept"), **options
    )


def since(first: int, states: dict[int, str]) -> dict[int, str]:
    """Every step from `first` to the end."""
    return {step: digest for step, digest in states.items() if step >= first}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kill", "before", "after", "first"),
    [
        pytest.param((7, 0, "before", 6), (5,), (2, 3), 7, id="in mid-epoch, before the update: 1 worker to 2"),
        pytest.param((7, 1, "after", 6), (1, 3, 1), (5,), 7, id="in mid-epoch, after the update: 3 workers to 1"),
        pytest.param(
            (10, 1, "after", 8), (3, 2), (2, 1, 2), 9, id="at an epoch's last step, not yet stored: 2 workers to 3"
        ),
        pytest.param(
            (10, 0, "tail", 10), (3, 2), (1, 4), 11, id="in the epoch's end: its schedule is neither lost nor doubled"
        ),
    ],
)
def test_after_a_kill(
    order: str,
    kill: tuple[int, int, str, int],
    before: tuple[int, ...],
    after: tuple[int, ...],
    first: int,
    tmp_path: Path,
) -> None:
    killed = resume("train", order, before, tmp_path, "killed", kill=kill)
    assert killed.codes[kill[1]] == -9
    ended = resume("train", order, after, tmp_path)
    assert ended.well().states == since(first, undisturbed("train", order))
    assert [
        note for note in ended.notes if f"at step {first - 1}" in note
    ] == ended.notes  # said once, not by every worker


@pytest.mark.parametrize("order", ORDERS)
def test_every_step_is_a_good_place_to_go_on_from(order: str, tmp_path: Path) -> None:
    reference = undisturbed("train", order, epochs=2)
    splits = [(5,), (3, 2), (1, 1, 3)]
    for number, limit in enumerate([1, 4, 5, 6, 9, 10]):
        launch = Launch(record_states=True, max_steps=limit)
        options = {"order": order, "kept": str(tmp_path / "kept"), "every": 100, "epochs": 2}
        ended = run(cases.train, splits[number % 3], tmp_path / str(limit), launch=launch, **options).well()
        assert ended.states == {step: reference[step] for step in ended.states}
        assert max(ended.states) == limit


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kill", [(4, 0, 3), (8, 0, 6)], ids=["after a break that was stored", "inside an epoch"])
def test_with_breaks(order: str, kill: tuple[int, int, int], tmp_path: Path) -> None:
    assert -9 in resume("breaking", order, (3, 2), tmp_path, "killed", kill=kill, every=3).codes
    ended = resume("breaking", order, (5,), tmp_path).well()
    assert ended.states == since(kill[2] + 1, undisturbed("breaking", order))


def test_saved_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    killed = resume("train", "tree", (5,), tmp_path, "killed", kill=(7, 0, "before", 5), save=True, every=100)
    assert killed.codes == (-9,)
    ended = resume("train", "tree", (2, 3), tmp_path, save=True, every=100).well()
    assert ended.states == since(6, undisturbed("train", "tree"))


def test_a_thawed_layer_stays_thawed(tmp_path: Path) -> None:
    killed = resume("train", "tree", (5,), tmp_path, "killed", kill=(7, 0, "before", 6), thaw_at=3)
    assert killed.codes == (-9,)
    ended = resume("train", "tree", (2, 3), tmp_path, thaw_at=3).well()
    assert ended.states == since(7, undisturbed("train", "tree", thaw_at=3))


@pytest.mark.parametrize("order", ORDERS)
def test_a_flipped_newest_file_is_passed_over_and_said(order: str, tmp_path: Path) -> None:
    resume("train", order, (5,), tmp_path, "killed", kill=(7, 0, "before", 6))
    newest = cases.files(tmp_path / "kept")[-1]
    body = bytearray(newest.read_bytes())
    body[len(body) // 2] ^= 1
    newest.write_bytes(body)
    ended = resume("train", order, (3, 2), tmp_path)
    assert ended.well().states == since(5, undisturbed("train", order))
    assert any(newest.name in note for note in ended.notes)
    assert any("at step 4" in note for note in ended.notes)


def test_a_finished_run_does_nothing(tmp_path: Path) -> None:
    done = resume("train", "tree", (5,), tmp_path, "done").well()
    again = resume("train", "tree", (3, 2), tmp_path).well()
    assert list(again.states.items()) == [(LAST, again.events("end")[0]["digest"])]
    assert again.events("end")[0]["digest"] == done.events("end")[0]["digest"]


def test_a_finished_run_with_more_epochs_goes_on(tmp_path: Path) -> None:
    resume("train", "tree", (5,), tmp_path, "done", epochs=2).well()
    ended = resume("train", "tree", (3, 2), tmp_path).well()
    assert ended.states == since(11, undisturbed("train", "tree"))


def test_another_definition_is_refused(tmp_path: Path) -> None:
    resume("train", "tree", (5,), tmp_path, "killed", kill=(7, 0, "before", 6))
    ended = resume("train", "tree", (3, 2), tmp_path, seed=99)
    assert ended.codes == (2, 2)
    assert "seed is 21 there and 99 here" in ended.errors[0]
    other = resume("train", "ddp", (3, 2), tmp_path, "ddp")
    assert "order is 'tree' there and 'ddp' here" in other.errors[0]


def test_not_strict_goes_on_where_place_and_streams_are_the_same(tmp_path: Path) -> None:
    resume("train", "ddp", (5,), tmp_path, "killed", kill=(7, 0, "before", 6))
    ended = resume("train", "ddp", (3, 2), tmp_path, nan="ignore")
    assert "pass job.checkpoint(..., strict=False) to go on with other bits" in ended.errors[0]
    ended = resume("train", "ddp", (3, 2), tmp_path, "other", nan="ignore", strict=False).well()
    assert list(ended.states) == list(range(7, LAST + 1))


@pytest.mark.parametrize(
    ("before", "after", "options", "differs"),
    [
        ("tree", "ddp", {}, "order is 'tree' there and 'ddp' here"),
        ("ddp", "tree", {}, "order is 'ddp' there and 'tree' here"),
        ("ddp", "ddp", {"virtual_workers": 6}, "virtual_workers is 5 there and 6 here"),
        ("tree", "tree", {"virtual_workers": 3}, "virtual_workers is 5 there and 3 here"),
        ("tree", "tree", {"batch_size": 3}, "loader0 is '48 samples, batches of 2"),
        ("tree", "tree", {"seed": 99}, "seed is 21 there and 99 here"),
    ],
)
def test_not_strict_refuses_another_place_in_the_data_or_other_streams(
    before: str, after: str, options: dict[str, object], differs: str, tmp_path: Path
) -> None:
    resume("train", before, (5,), tmp_path, "killed", kill=(3, 0, "before", 2))
    ended = resume("train", after, (options.get("virtual_workers", 5),), tmp_path, strict=False, **options)
    assert ended.codes == (2,)
    assert differs in ended.errors[0]
    assert "define the position in the data and the random streams" in ended.errors[0]
    assert "take its weights into a new run by `melodeon export`" in ended.errors[0]


def test_an_object_that_changes_what_it_takes_back_is_named(tmp_path: Path) -> None:
    launch = Launch(max_steps=1)
    run(cases.narrowing, (2,), tmp_path / "first", launch=launch, order="tree", kept=str(tmp_path / "kept")).well()
    ended = run(cases.narrowing, (2,), tmp_path / "second", order="tree", kept=str(tmp_path / "kept"))
    assert ended.codes == (1,)
    assert "optimizers.0.state.0.master" in ended.errors[0]
