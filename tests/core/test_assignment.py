import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.assignment import Assignment, check_virtual_workers
from melodeon.core.errors import UsageError
from melodeon.core.tree import cover

shapes = st.integers(1, 40).flatmap(lambda v: st.tuples(st.just(v), st.integers(1, v)))


def partials(counts: tuple[int, ...]) -> int:
    return sum(len(cover(r.start, r.stop, sum(counts))) for r in Assignment(counts).ranges())


@given(shapes)
def test_balanced_covers_every_rank_once_and_evenly(shape: tuple[int, int]) -> None:
    virtual_workers, num_workers = shape
    assignment = Assignment.balanced(virtual_workers, num_workers)
    assert [rank for ranks in assignment.ranges() for rank in ranks] == list(range(virtual_workers))
    assert assignment.num_workers == num_workers
    assert max(assignment.counts) - min(assignment.counts) <= 1


@pytest.mark.parametrize("virtual_workers", range(1, 12))
def test_balanced_sends_the_fewest_partials_of_all_balanced_splits(virtual_workers: int) -> None:
    for num_workers in range(1, virtual_workers + 1):
        small, large = divmod(virtual_workers, num_workers)
        best = min(
            partials(tuple(small + (worker in chosen) for worker in range(num_workers)))
            for chosen in itertools.combinations(range(num_workers), large)
        )
        assert partials(Assignment.balanced(virtual_workers, num_workers).counts) == best


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_text_goes_round_and_workers_own_their_ranks(counts: list[int]) -> None:
    assignment = Assignment.parse(",".join(map(str, counts)))
    assert assignment == Assignment(tuple(counts))
    assert Assignment.parse(str(assignment)) == assignment
    for rank in range(assignment.virtual_workers):
        assert rank in assignment.ranks_of(assignment.worker_of(rank))


@pytest.mark.parametrize("text", ["", "3,,4", "3,x", "1.5", "3;4"])
def test_what_is_not_a_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write it like 3,1,4"):
        Assignment.parse(text)


@pytest.mark.parametrize("text", ["0", "3,0,1", "4,-1"])
def test_a_worker_without_work_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="at least 1 virtual worker"):
        Assignment.parse(text)


@pytest.mark.parametrize("num_workers", [0, -1, 5])
def test_more_workers_than_virtual_workers_are_refused(num_workers: int) -> None:
    with pytest.raises(UsageError, match="choose 1 to 4 workers"):
        Assignment.balanced(4, num_workers)


@pytest.mark.parametrize("value", [0, -3, True, 2.0, "8", None])
def test_virtual_workers_is_a_positive_whole_number(value: object) -> None:
    with pytest.raises(UsageError, match="whole number of at least 1"):
        check_virtual_workers(value)  # type: ignore[arg-type]


def test_the_total_must_be_the_jobs() -> None:
    Assignment((3, 1, 4)).check_total(8)
    with pytest.raises(UsageError, match=r"3,1,4 sums to 8.*virtual_workers=6"):
        Assignment((3, 1, 4)).check_total(6)
