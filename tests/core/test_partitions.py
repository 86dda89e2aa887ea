"""Sequences, pieces and progress: each sample in exactly one piece, whatever the sizes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError
from melodeon.core.partitions import Block, Catalogue, Line, OpenPlan, Piece, Progress, block_at, sequence
from melodeon.core.sampling import EpochPlan

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)


def catalogue(counts: list[int]) -> Catalogue:
    return Catalogue.of((f"p{number}", count) for number, count in enumerate(counts))


def samples(piece: Piece) -> list[tuple[str, int]]:
    found, number = [], 0
    while number < len(piece):
        block, first = piece.block_at(number)
        assert first == number
        found += [(block.partition, sample) for sample in range(block.start, block.stop)]
        number += block.num_samples
    return found


def test_the_sequence_is_a_permutation_that_seed_and_epoch_name() -> None:
    drawn = {tuple(sequence(20, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(drawn) == 9
    assert all(sorted(one) == list(range(20)) for one in drawn)
    # Written down: another sequence would change the bits of every run that resumes.
    assert sequence(8, 0, 0) == [3, 7, 0, 1, 6, 5, 4, 2]
    assert sequence(8, 0, 1) == [0, 7, 4, 6, 2, 3, 5, 1]


@given(counts=sizes, virtual_workers=st.integers(1, 7), block=st.integers(1, 5), shuffle=st.booleans())
def test_pieces_share_the_samples_out_evenly_and_without_remainder(
    counts: list[int], virtual_workers: int, block: int, shuffle: bool
) -> None:
    line = Line(catalogue(counts), seed=1, epoch=2, shuffle=shuffle)
    pieces = [Piece(line, virtual_workers, rank, block) for rank in range(virtual_workers)]
    real = pieces[: sum(counts)]  # those behind run a sample that weighs nothing
    found = [sample for piece in real for sample in samples(piece)]
    assert sorted(found) == sorted((f"p{n}", sample) for n, count in enumerate(counts) for sample in range(count))
    assert found == samples(Piece(line, 1, 0, block))
    assert max(map(len, real)) - min(map(len, real)) <= 1
    assert all(len(piece) == 1 for piece in pieces[sum(counts) :])


@given(counts=sizes, virtual_workers=st.integers(1, 7), batch_size=st.integers(1, 4))
def test_pieces_are_as_long_as_the_plan_deals(counts: list[int], virtual_workers: int, batch_size: int) -> None:
    line = Line(catalogue(counts), seed=1, epoch=0, shuffle=True)
    plan = EpochPlan(sum(counts), virtual_workers, batch_size)
    for rank in range(min(virtual_workers, sum(counts))):
        counted = sum(plan.num_counted(step, rank) for step in range(plan.steps_per_epoch))
        assert len(Piece(line, virtual_workers, rank, 3)) == counted


@given(counts=sizes, block=st.integers(1, 5), data=st.data())
def test_any_sample_of_a_piece_is_found_in_its_block(counts: list[int], block: int, data: st.DataObject) -> None:
    piece = Piece(Line(catalogue(counts), seed=0, epoch=0, shuffle=True), 2, 0, block)
    whole = samples(piece)
    number = data.draw(st.integers(0, len(piece) - 1))
    found, first = piece.block_at(number)
    assert found.num_samples <= block
    assert (found.partition, found.start + number - first) == whole[number]


@given(counts=sizes, data=st.data())
def test_progress_is_small_and_counts_every_sample(counts: list[int], data: st.DataObject) -> None:
    line = Line(catalogue(counts), seed=3, epoch=1, shuffle=True)
    progress, used = line.begin(), dict.fromkeys((f"p{number}" for number in range(len(counts))), 0)
    for _ in range(data.draw(st.integers(0, 20))):
        name = data.draw(st.sampled_from(sorted(used)))
        used[name] = data.draw(st.integers(used[name], line.size(name)))
        progress = line.add(progress, {name: used[name]})
        assert {name: line.used(progress, name) for name in used} == used
        assert line.num_used(progress) == sum(used.values())
        assert not set(progress.offsets) & {partition.name for partition in line.partitions[: progress.front]}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=Progress) == progress
    done = line.add(progress, {name: line.size(name) for name in used})
    assert done == Progress(1, len(counts), {})


def test_blocks_of_a_partition() -> None:
    (partition,) = Catalogue.of({"a": 10}).partitions
    assert [block_at(partition, offset, 4) for offset in (0, 3, 4, 9)] == [
        Block("a", 0, 4),
        Block("a", 0, 4),
        Block("a", 4, 8),
        Block("a", 8, 10),
    ]


def test_the_digest_knows_names_sizes_and_sequence() -> None:
    listed = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}, {"a": 1, "c": 2}, {"a": 1}]
    assert len({Catalogue.of(one).digest() for one in listed}) == len(listed)


def test_a_cursor_of_an_open_plan_names_epoch_and_step() -> None:
    plan = OpenPlan(100, 2, 4)
    assert plan.at(plan.cursor(3, 17)) == (3, 17)
    assert plan.steps_per_epoch == 13
    assert plan.cursor(0, 12) < plan.cursor(1)


@pytest.mark.parametrize(
    ("partitions", "sentence"),
    [
        ([], "no partitions"),
        ([("a", 1), ("a", 2)], "two partitions are named 'a'"),
        ([("", 1)], "a partition is named ''"),
        ([(7, 1)], "a partition is named 7"),
        ([("a", -1)], "partition 'a' has -1 samples"),
        ([("a", 1.5)], "partition 'a' has 1.5 samples"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(partitions: list[tuple[str, int]], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Catalogue.of(partitions)
