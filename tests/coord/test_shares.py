"""Counts from weights: the laws."""

from hypothesis import given
from hypothesis import strategies as st

from melodeon.coord.shares import counts_from_weights
from melodeon.core.assignment import Assignment

weights = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8)


@given(weights, st.integers(0, 24))
def test_everybody_gets_one_and_all_are_given(speeds: list[float], more: int) -> None:
    virtual_workers = len(speeds) + more
    counts = counts_from_weights(virtual_workers, speeds)
    assert sum(counts) == virtual_workers
    assert min(counts) >= 1


@given(weights, st.integers(0, 24))
def test_the_faster_never_get_less(speeds: list[float], more: int) -> None:
    counts = counts_from_weights(len(speeds) + more, speeds)
    for speed, count in zip(speeds, counts, strict=True):
        for other_speed, other_count in zip(speeds, counts, strict=True):
            assert not (speed > other_speed * 1.000001 and count < other_count)


@given(st.integers(1, 8), st.integers(0, 24))
def test_equal_or_unknown_weights_are_balanced(num_workers: int, more: int) -> None:
    balanced = Assignment.balanced(num_workers + more, num_workers).counts
    assert counts_from_weights(num_workers + more, [2.0] * num_workers) == balanced
    assert counts_from_weights(num_workers + more, [0.0] * num_workers) == balanced


def test_proportional() -> None:
    assert counts_from_weights(12, [2.0, 1.0, 1.0]) == (6, 3, 3)
    assert counts_from_weights(8, [100.0, 1.0, 1.0]) == (6, 1, 1)
    assert counts_from_weights(8, [3.0, 0.0, 1.0]) == (4, 3, 1)  # unknown: as the median of the known
    assert counts_from_weights(6, [3.0, 0.1, 0.1, 2.0]) == (2, 1, 1, 2)  # the slow ones must have one: others give
