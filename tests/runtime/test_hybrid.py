"""A total batch that changes: the history alone decides the bits, on any workers, however they came together."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from melodeon.core.batches import BatchHistory, check_history, parse_history
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Feed
from melodeon.runtime.hybrid import Batches
from tests.runtime.feed_datasets import Numbers
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop import batches
from tests.runtime.loop.crew import Ended, run

RECORD = Launch(record_states=True)
HISTORY = [(3, 2), (8, 4), (11, 8), (13, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run(batches.job, [4], tmp_path_factory.mktemp("alone") / "run", history=HISTORY).well()


def written(folder: Path) -> BatchHistory:
    return parse_history((folder / "batches.json").read_text(), "batches.json")


@pytest.mark.parametrize(("counts", "num_workers"), [([2, 2], 0), ([3, 1], 1), ([1, 2, 1], 0)])
def test_a_history_gives_the_same_bits_on_any_workers(
    counts: list[int], num_workers: int, alone: Ended, tmp_path: Path
) -> None:
    ended = run(batches.job, counts, tmp_path / "run", history=HISTORY, num_workers=num_workers).well()
    assert ended.states == alone.states
    assert ended.lines("metrics.jsonl") == alone.lines("metrics.jsonl")
    assert written(ended.folder) == tuple(HISTORY)


def test_the_batch_changes_the_result_and_an_agreement_alone_does_not(alone: Ended, tmp_path: Path) -> None:
    plain = run(batches.job, [4], tmp_path / "plain", agree=False).well()
    agreed = run(batches.job, [2, 2], tmp_path / "agreed").well()
    weights = [{k: v for k, v in ended.leaves[30].items() if k.startswith("models")} for ended in (plain, agreed)]
    assert weights[0] == weights[1]
    assert any("nobody decides any" in note for note in agreed.notes)
    assert len(plain.states) == 36  # 4 epochs of 9 steps
    assert len(alone.states) < 36
    assert alone.leaves[4] != agreed.leaves[4]


def test_a_run_goes_on_from_a_checkpoint_with_its_factor(alone: Ended, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    stopped = replace(RECORD, max_steps=10)
    run(batches.job, [2, 2], tmp_path / "first", launch=stopped, history=HISTORY, checkpoints=kept).well()
    rest = run(batches.job, [3, 1], tmp_path / "rest", history=HISTORY, checkpoints=kept).well()
    assert rest.states == {step: digest for step, digest in alone.states.items() if step > 10}
    other = run(batches.job, [4], tmp_path / "other", history=[(3, 4)], checkpoints=kept)
    assert "batch history" in other.errors[0]


def test_the_script_doubles_its_batch_at_epochs(tmp_path: Path) -> None:
    ended = run(batches.job, [2, 2], tmp_path / "run", doubled_at=[1, 3]).well()
    assert written(ended.folder) == ((9, 2), (19, 4))  # epochs of 9, 5, 5 and 3 steps
    assert len(ended.states) == 22
    assert [(row["step"], row["factor"], row["why"]) for row in ended.events("batch")] == [
        (9, 2, "the script says so"),
        (19, 4, "the script says so"),
    ]
    again = replace(RECORD, batch_history=written(ended.folder))
    assert run(batches.job, [1, 3], tmp_path / "again", launch=again).well().states == ended.states
    kept = str(tmp_path / "kept")
    stopped = replace(RECORD, max_steps=16)
    run(batches.job, [4], tmp_path / "first", launch=stopped, doubled_at=[1, 3], checkpoints=kept).well()
    rest = run(batches.job, [1, 3], tmp_path / "rest", doubled_at=[1, 3], checkpoints=kept).well()
    assert rest.states == {step: digest for step, digest in ended.states.items() if step > 16}


def test_a_live_run_that_grew_is_run_again_on_other_workers(tmp_path: Path) -> None:
    """The master says (2, from view 2) and (4, from view 3); a worker is killed while it trains with factor 4."""
    kill = "step.agreed=kill@4/2"
    launch = replace(RECORD, hybrid=True)
    with Conductor(tmp_path / "run", batches.job, launch=launch, failpoints=kill, epochs=14, pace_s=0.01) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.step(0, 4)
        for seats, factor in [([0, 1], 2), ([0, 1, 2, 3], 4)]:
            fresh = [worker for worker in seats if worker not in conductor.statuses]
            conductor.start(*fresh)
            conductor.ready(*fresh)
            shares = [(worker, 4 // len(seats)) for worker in seats]
            conductor.entered(conductor.view(shares, planned=True, factor=factor))
            at = conductor.statuses[0].step
            assert all(conductor.statuses[worker].factor == factor for worker in seats)
            if factor == 2:
                conductor.step(1, at + 4)
        conductor.exit_code(2)
        rest = conductor.view([(0, 1), (1, 2), (3, 1)], planned=False, reason="worker 2 is gone", factor=4)
        conductor.entered(rest)
        conductor.done(0, 1, 3)
        live = conductor.ended
    history = written(live.folder)
    assert [factor for _, factor in history] == [2, 4]
    again = replace(RECORD, batch_history=history)
    assert run(batches.job, [1, 3], tmp_path / "again", launch=again, epochs=14).well().states == live.states


def test_a_worker_that_comes_between_two_epochs_knows_what_the_script_has_said_before_it_came(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Conductor(tmp_path / "run", batches.after_the_loop, launch=RECORD, gate=str(gate)) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.step(0, 3)
        conductor.start(1)
        conductor.ready(1)
        view = conductor.view([(0, 2), (1, 2)], planned=False, reason="one was lost on the way to it")
        gate.touch()
        conductor.entered(view)
        conductor.done(0, 1)
        live = conductor.ended
    assert written(live.folder) == ((3, 2), (5, 4))
    alone = run(batches.after_the_loop, [4], tmp_path / "alone", launch=RECORD, gate=str(gate)).well()
    assert live.states == alone.states


@pytest.mark.parametrize("counts", [[4], [1, 3]])
def test_a_run_ends_after_the_first_step_of_a_new_factor_if_the_mean_of_all_its_virtual_workers_is_good_enough(
    counts: list[int], tmp_path: Path
) -> None:
    """Of 4 the mean rank is 1.5, of 8 it is 3.5."""
    ended = run(batches.numbered, counts, tmp_path / "run", launch=replace(RECORD, until="rank > 3")).well()
    assert [row["rank"] for row in ended.lines("metrics.jsonl")] == [1.5, 1.5, 1.5, 3.5]
    assert max(ended.states) == 4


@pytest.mark.parametrize("point", ["view.gathered", "view.entered"])
def test_a_factor_whose_view_was_torn_leaves_no_trace(point: str, tmp_path: Path) -> None:
    launch = replace(RECORD, hybrid=True)
    options = {"launch": launch, "failpoints": f"{point}=kill@1/1", "epochs": 14, "pace_s": 0.01}
    with Conductor(tmp_path / "run", batches.job, **options) as conductor:
        conductor.start(0)
        conductor.ready(0)
        conductor.entered(conductor.view([(0, 4)], planned=False))
        conductor.start(1)
        conductor.ready(1)
        conductor.view([(0, 2), (1, 2)], planned=True, factor=2)
        assert conductor.exit_code(1) == -signal.SIGKILL
        conductor.entered(conductor.view([(0, 4)], planned=False, factor=1, reason="worker 1 is gone"))
        assert conductor.statuses[0].factor == 1
        conductor.start(2)
        conductor.ready(2)
        conductor.entered(conductor.view([(0, 2), (2, 2)], planned=True, factor=2))
        assert conductor.statuses[0].factor == 2
        conductor.done(0, 2)
        live = conductor.ended
    history = written(live.folder)
    assert [factor for _, factor in history] == [2]
    again = replace(RECORD, batch_history=history)
    assert run(batches.job, [1, 3], tmp_path / "again", launch=again, epochs=14).well().states == live.states


@pytest.mark.parametrize(
    ("options", "launch", "sentence"),
    [
        ({"order": "ddp"}, RECORD, "job.hybrid() needs order='tree'"),
        ({"drop_last": True}, RECORD, "does not go with uneven='drop'"),
        ({"agree": False}, replace(RECORD, hybrid=True), "--hybrid changes the total batch, which changes the result"),
        ({"agree": False}, replace(RECORD, batch_history=((3, 2),)), "--batch-history changes the total batch"),
        ({"agree": False, "doubled_at": [0]}, RECORD, "agree to it with job.hybrid()"),
        ({"set_inside": True}, RECORD, "was set inside a step"),
        ({"doubled_at": [0]}, replace(RECORD, hybrid=True), "--hybrid lets the master decide"),
        ({"history": [(3, 2)]}, replace(RECORD, hybrid=True), "leave one of both out"),
        ({"ramp_steps": -1}, RECORD, "ramp_steps=-1"),
    ],
)
def test_what_cannot_be_gets_a_sentence(options: dict, launch: Launch, sentence: str, tmp_path: Path) -> None:
    (said,) = run(batches.job, [4], tmp_path / "run", launch=launch, **options).errors
    assert sentence in said


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [([(1, 0)], "factor=0"), ([(5, 2), (5, 4)], "step 5"), ([(1.5, 2)], "step 1.5"), ([3], "3 in a batch history")],
)
def test_a_bad_history_gets_a_sentence(entries: list, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_history(entries)
    with pytest.raises(UsageError, match="holds no batch history"):
        parse_history(json.dumps(entries), "x.json")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_feed_gives_each_sample_once_through_changes_of_the_factor(num_workers: int) -> None:
    plan = EpochPlan(101, 3, 2)
    factors = [1, 1, 2, 4, 1, 2, 8]
    with Feed(Numbers(101), plan=plan, seed=3, shuffle=True, num_workers=num_workers) as feed:
        feed.start(range(3), 0)
        for epoch in range(2):
            cursor, seen, number = plan.cursor(epoch), [], 0
            while cursor < plan.cursor(epoch + 1):
                factor = factors[number % len(factors)]
                number += 1
                feed.reassign(range(3 * factor), cursor, factor)
                for rank in range(3 * factor):
                    batch = feed.take(cursor, rank)
                    seen += batch.data.tolist()[: batch.num_samples]
                cursor = plan.after(cursor, factor)
            assert sorted(seen) == list(range(101))


def test_learning_rates_follow_over_the_ramp_and_are_put_back() -> None:
    found = Batches(Launch())
    found.allow(4, None)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [parameter], "lr": 0.5}])
    step: list[int | None] = [None]
    found.follow(optimizer, lambda: step[0])
    found.running = 3

    def moved(at: int | None) -> float:
        step[0] = at
        parameter.grad = torch.ones(1)
        before = parameter.item()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.5
        return (before - parameter.item()) / 0.5

    assert moved(None) == 1.0  # outside the steps
    assert moved(10) == pytest.approx(1.0)
    assert found.committed(10)
    assert not found.committed(11)
    assert [round(moved(at), 4) for at in (11, 12, 13, 14, 50)] == [1.5, 2.0, 2.5, 3.0, 3.0]
