import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError
from melodeon.core.opdiff import COMMIT_RANK, OpDiff, OpRecord, first_difference, merge, read_records


def op(step: int, rank: int, index: int, **values: object) -> OpRecord:
    plain = {
        "op": f"aten.op{index}.default",
        "phase": "forward",
        "module": f"layer.{index}",
        "site": f"train.py:{index}",
    }
    return OpRecord(
        **{
            "step": step,
            "rank": rank,
            "index": index,
            **plain,
            "inputs": (f"f32[2]#{step}{rank}{index}",),
            "outputs": (f"f32[2]#{step}{rank}{index}9",),
            **values,
        }
    )


def a_run(steps: int = 2, ranks: int = 3, ops: int = 4) -> list[OpRecord]:
    return [op(s, r, i) for s in range(steps) for r in [*range(ranks), COMMIT_RANK] for i in range(ops)]


def changed(run: list[OpRecord], position: int, **values: object) -> list[OpRecord]:
    return [replace(record, **values) if i == position else record for i, record in enumerate(run)]


def as_lines(run: list[OpRecord]) -> list[str]:
    keys = ("step", "rank", "index", "op", "phase", "module", "site", "inputs", "outputs", "sample", "random")
    return [
        json.dumps({key: getattr(r, key) for key in keys} | {"names": {str(i): n for i, n in r.names.items()}}) + "\n"
        for r in run
    ]


def split(run: list[OpRecord], counts: list[int]) -> list[list[OpRecord]]:
    """The files of workers that run `counts` virtual workers each, and all of them the commit."""
    files, start = [], 0
    for count in counts:
        mine = {*range(start, start + count), COMMIT_RANK}
        files.append([record for record in run if record.rank in mine])
        start += count
    return files


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3))
def test_every_split_merges_to_the_same_run(counts: list[int], ops: int) -> None:
    run = a_run(ranks=sum(counts), ops=ops)
    assert list(merge(split(run, counts))) == run


@given(st.data())
def test_one_changed_output_is_found_wherever_it_is_and_however_the_runs_were_split(data: st.DataObject) -> None:
    run = a_run()
    position = data.draw(st.integers(0, len(run) - 1))
    left, right = (data.draw(st.sampled_from([[3], [1, 2], [2, 1], [1, 1, 1]])) for _ in range(2))
    found = first_difference(merge(split(run, left)), merge(split(changed(run, position, outputs=("x",)), right)))
    assert (found.kind, found.compared, found.a) == ("operator", position, run[position])


def test_equal_runs_are_equal() -> None:
    found = first_difference(a_run(), a_run())
    assert found.equal
    assert found.sentence() == "all 32 operators agree, inputs and outputs"


def test_the_sentence_names_step_virtual_worker_module_operator_and_site() -> None:
    found = first_difference(a_run(), changed(a_run(), 6, outputs=("f32[2]#other",)))
    assert found.sentence() == (
        "step 0, virtual worker 1: aten.op2.default in layer.2 at train.py:2 reads the same and gives different results"
    )
    assert [record.index for record in found.neighbours] == [0, 1]
    assert found.positions() == (0,)


def test_the_first_of_several_differences_is_the_answer() -> None:
    other = changed(changed(a_run(), 20, outputs=("x",)), 9, outputs=("y",))
    assert first_difference(a_run(), other).compared == 9


def test_a_moved_call_site_is_no_difference() -> None:
    assert first_difference(a_run(), changed(a_run(), 3, site="train.py:99")).equal


def test_random_operators_are_told_apart() -> None:
    run = changed(a_run(), 5, random=True)
    found = first_difference(run, changed(run, 5, outputs=("x",)))
    assert found.kind == "random"
    assert "the random stream differs" in found.sentence()


@pytest.mark.parametrize(
    ("position", "names", "text"),
    [
        (0, {}, "the batch"),
        (0, {0: "fc.weight"}, "fc.weight as left by the start of the run"),
        (16, {0: "fc.weight"}, "fc.weight as left by the exchange and commit of step 0"),
        (12, {0: "fc.weight.grad"}, "the gradient fc.weight.grad after the exchange of step 0"),
        (28, {}, "the gradients after the exchange of step 1"),
    ],
)
def test_inputs_that_differ_with_no_culprit_before_are_traced_to_what_is_not_recorded(
    position: int, names: dict[int, str], text: str
) -> None:
    run = changed(a_run(), position, names=names)
    found = first_difference(run, changed(run, position, inputs=("f32[2]#other",), outputs=("x",)))
    assert found.kind == "inputs"
    assert text in found.sentence()


def test_a_plain_argument_that_differs_is_shown() -> None:
    run = changed(a_run(), 3, inputs=("f32[2]#1", "0.1"))
    found = first_difference(run, changed(run, 3, inputs=("f32[2]#1", "0.2")))
    assert "the argument 0.1 of the call, 0.2 in the other run" in found.sentence()


def test_another_operator_at_the_same_place() -> None:
    found = first_difference(a_run(), changed(a_run(), 2, op="aten.relu.default"))
    assert found.kind == "sequence"
    assert "aten.op2.default" in found.sentence()
    assert "aten.relu.default" in found.sentence()


def test_a_missing_operator_is_named_with_the_run_that_has_it() -> None:
    short = [record for record in a_run() if record.key != op(0, 1, 3).key]
    assert "only the first run has aten.op3.default" in first_difference(a_run(), short).sentence()
    assert "only the second run has aten.op3.default" in first_difference(short, a_run()).sentence()


def test_a_run_that_ends_early_is_not_equal() -> None:
    found = first_difference(a_run(), a_run(steps=1))
    assert (found.kind, found.compared) == ("ends", 16)
    assert "the second run ends before" in found.sentence()


def test_workers_of_one_run_that_disagree_in_the_commit_are_reported() -> None:
    first, second = split(a_run(), [2, 1])
    torn = [replace(r, outputs=("x",)) if r.rank == COMMIT_RANK and r.index == 1 else r for r in second]
    for pair in ((merge([first, torn]), a_run()), (a_run(), merge([first, torn]))):
        found = first_difference(*pair)
        assert (found.kind, found.compared) == ("workers", 13)
        assert "step 0, commit: the workers of one run disagree" in found.sentence()


def test_the_size_of_a_difference_comes_from_the_samples() -> None:
    run = changed(a_run(), 1, sample=((1.0, 2.0),))
    near = first_difference(run, changed(run, 1, outputs=("x",), sample=((1.0, 2.5),)))
    assert near.size() == "1 of 2 sampled output values differ, by up to 0.5 (0.2 of the value)"
    hidden = first_difference(run, changed(run, 1, outputs=("x",)))
    assert "none of 2 sampled" in hidden.size()
    assert OpDiff(kind="equal", compared=0).size() == ""


def test_sizes_with_infinities_and_nans_do_not_fail() -> None:
    run = changed(a_run(), 1, sample=((float("nan"), float("inf"), 1.0),))
    found = first_difference(run, changed(run, 1, outputs=("x",), sample=((float("nan"), 3.0, float("nan")),)))
    assert found.size().startswith("2 of 3")


def test_records_come_back_from_their_lines() -> None:
    run = changed(a_run(), 1, names={0: "fc.weight"}, sample=((1.0, 0.5), None), random=True)
    assert list(read_records(as_lines(run), "worker-0.jsonl")) == run


def test_a_line_that_a_killed_run_left_unfinished_is_passed_over() -> None:
    lines = as_lines(a_run())
    assert len(list(read_records([*lines[:3], lines[3][:40]], "w"))) == 3


@pytest.mark.parametrize("bad", ["{}\n", "not json\n", "[1]\n", '{"step": 0, "rank": 0}\n', "null\n"])
def test_a_damaged_line_is_refused_by_number(bad: str) -> None:
    lines = as_lines(a_run())
    with pytest.raises(UsageError, match=r"ops/worker-0\.jsonl line 2 "):
        list(read_records([lines[0], bad, lines[1]], "ops/worker-0.jsonl"))


def test_records_out_of_order_are_refused() -> None:
    lines = as_lines(a_run())
    with pytest.raises(UsageError, match=r"line 2 .*out of order"):
        list(read_records([lines[1], lines[0]], "w"))
