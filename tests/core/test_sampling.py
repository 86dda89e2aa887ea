import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from melodeon.core.errors import UsageError
from melodeon.core.sampling import EpochPlan, Uneven

sizes = {"num_samples": st.integers(1, 90), "virtual_workers": st.integers(1, 9), "batch_size": st.integers(1, 7)}


def stock_batches(plan: EpochPlan, rank: int, epoch: int, *, shuffle: bool) -> list[list[int]]:
    drop = plan.uneven == "drop"
    sampler = DistributedSampler(
        range(plan.num_samples), plan.virtual_workers, rank, shuffle=shuffle, seed=7, drop_last=drop
    )
    sampler.set_epoch(epoch)
    return list(BatchSampler(sampler, plan.batch_size, drop_last=drop))


def our_batches(plan: EpochPlan, rank: int, epoch: int, *, shuffle: bool) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7 + epoch)
    order = torch.randperm(plan.num_samples, generator=generator).tolist() if shuffle else range(plan.num_samples)
    return [
        [order[position % plan.num_samples] for position in plan.positions(step, rank)]
        for step in range(plan.steps_per_epoch)
    ]


def plan_or_none(num_samples: int, virtual_workers: int, batch_size: int, uneven: str) -> EpochPlan | None:
    if uneven == "drop" and num_samples // virtual_workers < batch_size:
        return None
    return EpochPlan(num_samples, virtual_workers, batch_size, uneven)


@settings(max_examples=60, deadline=None)
@given(**sizes, uneven=st.sampled_from(["pad", "drop"]), epoch=st.integers(0, 3), shuffle=st.booleans())
def test_batches_equal_those_of_distributed_sampler(num_samples, virtual_workers, batch_size, uneven, epoch, shuffle):
    plan = plan_or_none(num_samples, virtual_workers, batch_size, uneven)
    if plan is None:
        return
    for rank in range(virtual_workers):
        assert our_batches(plan, rank, epoch, shuffle=shuffle) == stock_batches(plan, rank, epoch, shuffle=shuffle)


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_exact_takes_only_padding_out_of_distributed_sampler(num_samples, virtual_workers, batch_size):
    plan = EpochPlan(num_samples, virtual_workers, batch_size, "exact")
    padded = EpochPlan(num_samples, virtual_workers, batch_size, "pad")
    assert plan.steps_per_epoch == padded.steps_per_epoch
    for rank in range(virtual_workers):
        for step in range(plan.steps_per_epoch):
            full, kept = padded.positions(step, rank), plan.positions(step, rank)
            real = [position for position in full if position < num_samples]
            assert list(kept) == (real or list(full))


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_exact_counts_each_sample_once(num_samples, virtual_workers, batch_size):
    plan = EpochPlan(num_samples, virtual_workers, batch_size, "exact")
    seen: list[int] = []
    for step in range(plan.steps_per_epoch):
        for rank in range(virtual_workers):
            batch = plan.positions(step, rank)
            assert 1 <= len(batch) <= batch_size
            assert plan.num_counted(step, rank) == len([at for at in batch if at < num_samples])
            seen.extend(batch[: plan.num_counted(step, rank)])
    assert sorted(seen) == list(range(num_samples))


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_exact_weights_turn_mean_losses_into_the_mean_over_the_samples(num_samples, virtual_workers, batch_size):
    plan = EpochPlan(num_samples, virtual_workers, batch_size, "exact")
    for step in range(plan.steps_per_epoch):
        ranks = range(virtual_workers)
        counts = [plan.num_counted(step, rank) for rank in ranks]
        weights = [plan.weight(step, rank) for rank in ranks]
        assert sum(weights) == pytest.approx(virtual_workers)
        for count, weight in zip(counts, weights, strict=True):
            assert weight == pytest.approx(count * virtual_workers / sum(counts))
        if len(set(counts)) == 1:
            assert set(weights) == {1.0}


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_stock_plans_weigh_every_batch_the_same(uneven):
    plan = EpochPlan(23, 4, 2, uneven)
    steps = range(plan.steps_per_epoch)
    assert {plan.weight(step, rank) for step in steps for rank in range(4)} == {1.0}
    assert all(plan.num_counted(step, rank) == len(plan.positions(step, rank)) for step in steps for rank in range(4))


def test_padding_stays_with_weight_zero_where_a_batch_would_be_empty():
    plan = EpochPlan(5, 4, 1, "exact")
    assert [list(plan.positions(1, rank)) for rank in range(4)] == [[4], [5], [6], [7]]
    assert [plan.num_counted(1, rank) for rank in range(4)] == [1, 0, 0, 0]
    assert [plan.weight(1, rank) for rank in range(4)] == [4.0, 0.0, 0.0, 0.0]


@given(epoch=st.integers(0, 50), **sizes)
def test_the_cursor_is_one_integer_for_epoch_and_step(epoch, num_samples, virtual_workers, batch_size):
    plan = EpochPlan(num_samples, virtual_workers, batch_size)
    for step in range(plan.steps_per_epoch):
        assert plan.at(plan.cursor(epoch, step)) == (epoch, step)
    assert plan.cursor(epoch + 1) == plan.cursor(epoch, plan.steps_per_epoch - 1) + 1


def test_a_step_or_rank_outside_the_plan_is_refused():
    plan = EpochPlan(8, 2, 2)
    for step, rank in [(2, 0), (-1, 0), (0, 2), (0, -1)]:
        with pytest.raises(IndexError, match="outside"):
            plan.positions(step, rank)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((8, 2, 0), "batch_size=0 must be a whole number of at least 1"),
        ((8, 2, -3), "batch_size=-3"),
        ((8, 2, 2.0), "batch_size=2.0"),
        ((8, 2, True), "batch_size=True"),
        ((8, 2, "4"), "batch_size='4'"),
        ((8, 0, 2), "virtual_workers=0"),
        ((0, 2, 2), "the dataset has 0 samples"),
        ((8, 2, 2, "wrap"), "uneven='wrap' is not known: choose 'exact', 'pad' or 'drop'"),
        ((3, 8, 1, "drop"), r"3 samples and uneven='drop' needs 8 for one step"),
        ((30, 8, 4, "drop"), r"30 samples and uneven='drop' needs 32 for one step"),
    ],
)
def test_bad_values_get_a_sentence(arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        EpochPlan(*arguments)


@given(
    num_samples=st.integers(1, 120),
    virtual_workers=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    factors=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=8),
)
def test_every_sample_counts_once_an_epoch_through_any_sequence_of_batch_factors(
    num_samples: int, virtual_workers: int, batch_size: int, factors: list[int]
) -> None:
    plan = EpochPlan(num_samples, virtual_workers, batch_size)
    cursor, seen, number = plan.cursor(3), [], 0
    while cursor < plan.cursor(4):
        factor = factors[number % len(factors)]
        number += 1
        _, step = plan.at(cursor)
        ranks = range(virtual_workers * factor)
        counts = [plan.num_counted(step, rank, factor) for rank in ranks]
        for rank, count in zip(ranks, counts, strict=True):
            batch = plan.positions(step, rank, factor)
            assert 1 <= len(batch) <= batch_size
            seen.extend(batch[:count])
            # The mean over ranks of weighted means is the mean over the samples of the step.
            assert plan.weight(step, rank, factor) == count * len(ranks) / sum(counts)
        cursor = plan.after(cursor, factor)
    assert cursor == plan.cursor(4)
    assert sorted(seen) == list(range(num_samples))


@pytest.mark.parametrize("uneven", ["exact", "pad"])
@given(num_samples=st.integers(1, 200), factor=st.sampled_from([2, 3, 4]), batch_size=st.integers(1, 4))
def test_a_constant_factor_deals_as_so_many_more_ranks_do(
    uneven: Uneven, num_samples: int, factor: int, batch_size: int
) -> None:
    plan = EpochPlan(num_samples, 3, batch_size, uneven)
    wide = EpochPlan(num_samples, 3 * factor, batch_size, uneven)
    for step in range(wide.steps_per_epoch):
        for rank in range(3 * factor):
            assert plan.positions(step * factor, rank, factor) == wide.positions(step, rank)
            assert plan.weight(step * factor, rank, factor) == wide.weight(step, rank)
            assert plan.num_counted(step * factor, rank, factor) == wide.num_counted(step, rank)
