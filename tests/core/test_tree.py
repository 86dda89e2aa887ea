import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.tree import Span, carries, cover, fold, mergeable


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[int]]:
    """(V, cut points): a contiguous split of V virtual ranks."""
    virtual_workers = draw(st.integers(1, 70))
    cuts = draw(st.sets(st.integers(1, virtual_workers - 1))) if virtual_workers > 1 else set()
    return virtual_workers, [0, *sorted(cuts), virtual_workers]


def nested(start: int, stop: int, virtual_workers: int) -> str:
    """The sum of a node, written out as the tree's definition says: left + right, or left alone."""
    if stop - start == 1:
        return str(start)
    size = 1
    while size * 2 < stop - start:
        size *= 2
    return f"({nested(start, start + size, virtual_workers)}+{nested(start + size, stop, virtual_workers)})"


def push(stack: Sequence[Span], leaf: int, virtual_workers: int) -> tuple[Span, ...]:
    """The stack after pushing a leaf and carrying."""
    merges = carries(stack, leaf, virtual_workers)
    if not merges:
        return (*stack, (leaf, leaf + 1))
    return (*stack[: len(stack) - merges], (stack[-merges][0], leaf + 1))


def spans_of(virtual_workers: int, cuts: list[int]) -> list[Span]:
    return [s for a, b in itertools.pairwise(cuts) for s in cover(a, b, virtual_workers)]


@given(splits())
def test_any_split_folds_to_the_same_expression(split: tuple[int, list[int]]) -> None:
    virtual_workers, cuts = split
    spans = spans_of(virtual_workers, cuts)
    values = [nested(*span, virtual_workers) for span in spans]
    for i, j in fold(spans, virtual_workers):
        values[i] = f"({values[i]}+{values[j]})"
    assert values[0] == nested(0, virtual_workers, virtual_workers)


@given(splits())
def test_pushing_leaves_gives_the_cover(split: tuple[int, list[int]]) -> None:
    virtual_workers, cuts = split
    for start, stop in itertools.pairwise(cuts):
        stack: tuple[Span, ...] = ()
        for leaf in range(start, stop):
            stack = push(stack, leaf, virtual_workers)
        assert stack == cover(start, stop, virtual_workers)


@given(st.integers(1, 200))
def test_one_worker_holds_few_partials_on_its_way_to_the_root(virtual_workers: int) -> None:
    stack: tuple[Span, ...] = ()
    for leaf in range(virtual_workers):
        stack = push(stack, leaf, virtual_workers)
        assert len(stack) <= virtual_workers.bit_length()
    assert stack == ((0, virtual_workers),)


@given(splits())
def test_a_range_that_cuts_across_holds_fewer_than_two_a_level(split: tuple[int, list[int]]) -> None:
    virtual_workers, cuts = split
    levels = (virtual_workers - 1).bit_length()
    for start, stop in itertools.pairwise(cuts):
        stack: tuple[Span, ...] = ()
        for leaf in range(start, stop):
            stack = push(stack, leaf, virtual_workers)
            assert len(stack) <= max(levels + 1, 2 * levels - 2)
    assert len(cover(1, 15, 16)) == 6, "and there is one that holds so many"


@given(splits())
def test_a_cover_is_maximal(split: tuple[int, list[int]]) -> None:
    virtual_workers, cuts = split
    for start, stop in itertools.pairwise(cuts):
        spans = cover(start, stop, virtual_workers)
        assert [rank for a, b in spans for rank in range(a, b)] == list(range(start, stop))
        assert not any(mergeable(a, b, virtual_workers) for a, b in itertools.pairwise(spans))


def test_the_last_node_may_be_cut_short() -> None:
    assert cover(4, 6, 6) == ((4, 6),)
    assert fold([(0, 4), (4, 6)], 6) == ((0, 1),)
    assert cover(2, 6, 6) == ((2, 4), (4, 6))
