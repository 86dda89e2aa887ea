import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.core.verifyplan import hard_split, num_partials, parse_counts, plan_runs


def splits(virtual_workers: int, counts: list[int] | None, *extra: str, against_ddp: bool = False) -> list[str]:
    runs = plan_runs(virtual_workers, counts, [Assignment.parse(text) for text in extra], against_ddp=against_ddp)
    return [run.label.removeprefix("assignment ") for run in runs]


def test_every_count_is_run_evenly_and_unevenly() -> None:
    assert splits(8, [1, 2])[:2] == ["8", "4,4"]
    assert sorted(splits(8, [1, 2])[2]) == sorted("5,3")
    assert len(splits(8, [1, 2, 3])) == 5


def test_named_splits_come_on_top_and_none_comes_twice() -> None:
    assert splits(8, [1], "3,1,4", "8") == ["8", "3,1,4"]


def test_stock_ddp_runs_last_on_one_process_per_virtual_worker() -> None:
    *_, last = plan_runs(3, [1], against_ddp=True)
    assert last.is_stock
    assert last.assignment.counts == (1, 1, 1)
    assert splits(3, [3], against_ddp=True) == ["1,1,1", "stock DDP"]


def test_counts_that_nobody_named_stop_at_the_virtual_workers() -> None:
    assert splits(2, None) == ["2", "1,1"]


@pytest.mark.parametrize(
    ("virtual_workers", "counts", "extra", "sentence"),
    [
        (4, [1, 5], [], "5 workers cannot share 4 virtual workers"),
        (4, [1], ["3,2"], "assignment 3,2 sums to 5"),
        (4, [1], [], "leaves nothing to compare"),
        (1, None, [], "leaves nothing to compare"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    virtual_workers: int, counts: list[int] | None, extra: list[str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        splits(virtual_workers, counts, *extra)


@given(st.integers(1, 40), st.data())
def test_the_hard_split_is_one_move_off_the_balanced_one(virtual_workers: int, data: st.DataObject) -> None:
    num_workers = data.draw(st.integers(1, virtual_workers))
    balanced, hard = Assignment.balanced(virtual_workers, num_workers), hard_split(virtual_workers, num_workers)
    if hard is None:
        assert num_workers in (1, virtual_workers)
        return
    assert (hard.virtual_workers, hard.num_workers) == (virtual_workers, num_workers)
    assert sum(abs(a - b) for a, b in zip(hard.counts, balanced.counts, strict=True)) == 2


def test_the_hard_split_cuts_where_the_tree_does_not() -> None:
    assert num_partials(Assignment((4, 4))) == 2
    hard = hard_split(8, 2)
    assert hard is not None
    assert num_partials(hard) > 2


@given(st.integers(1, 24), st.lists(st.integers(1, 24), min_size=1, max_size=4), st.booleans())
def test_no_two_runs_are_the_same_and_all_can_be_told_apart(virtual_workers: int, counts: list[int], ddp: bool) -> None:
    counts = [min(count, virtual_workers) for count in counts]
    try:
        runs = plan_runs(virtual_workers, counts, against_ddp=ddp)
    except UsageError:
        assert not ddp
        return
    assert len(set(runs)) == len({run.label for run in runs}) == len({run.slug for run in runs}) == len(runs)
    assert runs[0].assignment == Assignment.balanced(virtual_workers, counts[0])


def test_counts_are_read_once_each_and_checked() -> None:
    assert parse_counts("3,1,3") == (3, 1)
    for text, sentence in {"1,x": "not a list of whole numbers", "1,0": "has 0", "": "not a list"}.items():
        with pytest.raises(UsageError, match=sentence):
            parse_counts(text)
