"""Every virtual worker starts from the same buffers; virtual rank 0's remain."""

import pytest
import torch
from torch import nn

from melodeon.core.errors import UsageError
from melodeon.runtime.buffers import Buffers
from melodeon.runtime.group import Group
from tests.runtime.threads import on_workers

LARGE = 70_000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("large", torch.zeros(LARGE), persistent=False)
        self.register_buffer("nothing", None)


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: buffer.flatten()[:3].tolist() for name, buffer in model.named_buffers()}


def forward(model: Model, rank: int) -> None:
    """What a virtual worker does to the buffers, each in another way."""
    model.norm(torch.randn(4, 3, generator=torch.Generator().manual_seed(rank)))
    model.count = model.count + 10 + rank  # another tensor in its place
    model.large[rank] = 1.0 + rank


def run_step(model: Model, buffers: Buffers, ranks: range) -> None:
    buffers.begin_step()
    for rank in ranks:
        if rank != ranks[0]:
            buffers.enter()
        forward(model, rank)
        buffers.leave(rank)


def expected(steps: int) -> dict[str, list[float]]:
    model = Model()
    for _ in range(steps):
        forward(model, 0)
    return values(model)


def test_rank_0_s_remain_on_one_worker() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    for step in (1, 2):
        run_step(model, buffers, range(3))
        buffers.commit(buffers.kept_bytes())
        assert values(model) == expected(step)


def test_rank_0_s_reach_every_worker() -> None:
    def work(group: Group) -> dict[str, list[float]]:
        model = Model()
        buffers = Buffers([model], group, owner=0)
        for _ in range(2):
            run_step(model, buffers, (range(2), range(2, 3))[group.rank])
            sizes = group.gather_bytes(str(buffers.kept_bytes()).encode())
            buffers.commit(max(int(size) for size in sizes))
        return values(model)

    assert on_workers(2, work) == [expected(2), expected(2)]


def test_every_virtual_worker_starts_alike() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    start = values(model)
    run_step(model, buffers, range(2))
    buffers.enter()
    assert values(model) == start


def test_what_is_written_behind_the_counter_is_found_in_the_first_steps() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    for step in (1, 2, 3, 4, 5, 6):  # also after the steps in which values are compared
        buffers.begin_step()
        for rank in range(3):
            if rank:
                buffers.enter()
            model.count.data.add_(1 + rank)
            model.large.data.add_(1.0 + rank)
            buffers.leave(rank)
        buffers.commit(buffers.kept_bytes())
        assert (int(model.count), float(model.large[-1])) == (step, step)


def test_a_dropped_step_leaves_no_trace() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    start = values(model)
    run_step(model, buffers, range(2))
    buffers.drop()
    assert values(model) == start


def test_what_is_done_between_steps_stays() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    run_step(model, buffers, range(2))
    buffers.commit(buffers.kept_bytes())
    model.norm.running_mean.fill_(5.0)
    model.count = torch.tensor(100)
    buffers.begin_step()
    buffers.enter()
    assert model.norm.running_mean.tolist() == [5.0, 5.0, 5.0]
    assert int(model.count) == 100


def test_an_untouched_large_buffer_is_neither_kept_nor_sent() -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    buffers.begin_step()
    model.norm(torch.randn(4, 3))
    buffers.leave(0)
    assert 0 < buffers.kept_bytes() < 200


def test_a_buffer_keeps_its_identity() -> None:
    """Whoever holds on to the tensor goes on seeing it."""
    model = Model()
    held = model.count
    buffers = Buffers([model], Group(0, 1), 0)
    run_step(model, buffers, range(2))
    buffers.commit(buffers.kept_bytes())
    assert model.count is held
    assert int(held) == 10


def test_a_buffer_shared_by_modules_counts_once() -> None:
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    second.running_mean = first.running_mean
    buffers = Buffers([nn.ModuleList([first, second])], Group(0, 1), 0)
    buffers.begin_step()
    buffers.leave(0)
    statistics = 3  # one mean and two variances, of three floats each and their number
    assert buffers.kept_bytes() == statistics * (3 * 4 + 8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda model: setattr(model, "count", torch.zeros(2)), r"buffer 'count' went from torch.int64 \(\) to"),
        (lambda model: setattr(model, "count", None), "buffer 'count' was taken away"),
    ],
)
def test_other_shapes_are_refused(change: object, sentence: str) -> None:
    model = Model()
    buffers = Buffers([model], Group(0, 1), 0)
    buffers.begin_step()
    change(model)  # type: ignore[operator]
    with pytest.raises(UsageError, match=sentence):
        buffers.leave(0)
