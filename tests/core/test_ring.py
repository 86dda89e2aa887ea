"""Laws of gloo's ring order; that it is gloo's is shown in tests/runtime/test_reduce.py."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core import ring

numels = st.integers(0, 3_000_000)
itemsizes = st.sampled_from([2, 4, 8])
counts = st.integers(1, 16)


@given(numels, itemsizes, counts)
def test_chunks_cut_the_tensor_without_gap_or_overlap(numel: int, itemsize: int, virtual_workers: int) -> None:
    chunks = ring.chunks(numel, itemsize, virtual_workers)
    assert len(chunks) == virtual_workers
    assert [low for low, _ in chunks] == [0, *(high for _, high in chunks[:-1])]
    assert chunks[-1][1] == numel


@given(numels, itemsizes, counts)
def test_every_chunk_but_the_last_ones_is_full(numel: int, itemsize: int, virtual_workers: int) -> None:
    size = ring.chunk_size(numel, itemsize, virtual_workers)
    lengths = [high - low for low, high in ring.chunks(numel, itemsize, virtual_workers)]
    assert lengths == sorted(lengths, reverse=True)
    assert sum(0 < length < size for length in lengths) <= 1


@given(counts.flatmap(lambda v: st.tuples(st.integers(0, v - 1), st.just(v))))
def test_the_fold_takes_every_rank_once_and_ends_at_the_chunk_s_own(place: tuple[int, int]) -> None:
    chunk, virtual_workers = place
    order = ring.fold_order(chunk, virtual_workers)
    assert sorted(order) == list(range(virtual_workers))
    assert order[-1] == chunk
    assert all((a - b) % virtual_workers == 1 % virtual_workers for a, b in pairwise(order))


@pytest.mark.parametrize(
    ("numel", "itemsize", "virtual_workers", "size"),
    [
        (10, 4, 3, 4),  # 6 segments of 2 elements, two a chunk
        (1, 4, 4, 2),
        (1 << 20, 4, 4, 1 << 18),  # 8 segments of 512 kB
        (6 << 20, 4, 4, 6 << 18),  # 24 segments of 1 MiB, six a chunk
        (7_000_001, 4, 3, 2_333_340),  # 27 segments of 259,260 elements
    ],
)
def test_chunk_sizes(numel: int, itemsize: int, virtual_workers: int, size: int) -> None:
    assert ring.chunk_size(numel, itemsize, virtual_workers) == size
