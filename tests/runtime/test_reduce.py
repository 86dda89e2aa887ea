"""The reducers sum in their order on every split and over every transport, missing gradients included."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.runtime import exchange
from melodeon.runtime.buckets import ddp_buckets
from melodeon.runtime.group import Group
from melodeon.runtime.guard import grads_of, marks_of
from melodeon.runtime.reduce import Header
from melodeon.runtime.reduce_ddp import DdpReducer
from melodeon.runtime.reduce_tree import TreeReducer, tree_exchange
from tests.runtime.threads import on_workers

torch.set_num_threads(1)

SHAPES = ((7, 3), (5,), (1,), (40, 10))
Gradients = list[list[torch.Tensor | None]]
"""By virtual rank, then by parameter."""


def gradients(virtual_workers: int, missing: Sequence[tuple[int, int]] = ()) -> Gradients:
    """Numbers of very different sizes, so that every order of summation rounds in its own way; some are -0.0."""
    generator = torch.Generator().manual_seed(virtual_workers)
    rows: Gradients = []
    for rank in range(virtual_workers):
        row: list[torch.Tensor | None] = []
        for index, shape in enumerate(SHAPES):
            sizes = 10.0 ** torch.randint(-4, 4, shape, generator=generator)
            value = torch.randn(shape, generator=generator) * sizes
            value.view(-1)[0] = -0.0
            row.append(None if (rank, index) in missing else value)
        rows.append(row)
    return rows


def reduce_on(kind: Any, counts: Sequence[int], rows: Gradients, *, steps: int = 1) -> list[list[torch.Tensor | None]]:
    """What every worker has in `.grad` after `steps` equal steps."""
    assignment = Assignment(tuple(counts))

    def work(group: Group) -> list[torch.Tensor | None]:
        torch.set_num_threads(1)
        params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        reducer = kind(params, [f"p{index}" for index in range(len(params))], group, assignment)
        for _ in range(steps):
            reducer.drop_gradients()
            for rank in assignment.ranks_of(group.rank):
                backward(reducer, params, rank, rows[rank])
            header = reducer.finish(finite=True, fingerprint=0, buffer_bytes=0)
            assert header == Header(tuple(param.grad is not None for param in params), True, True, 0)
        result = [None if param.grad is None else param.grad.clone() for param in params]
        reducer.close()
        return result

    return [work(Group(0, 1))] if len(counts) == 1 else on_workers(len(counts), work)


def backward(reducer: Any, params: Sequence[torch.nn.Parameter], rank: int, row: Sequence[torch.Tensor | None]) -> None:
    """A backward pass that gives parameter p the gradient row[p] times the reducer's scale."""
    terms = [(param * value).sum() for param, value in zip(params, row, strict=True) if value is not None]
    reducer.before(rank, marks_of(params), first=True, final=True)
    if terms:
        torch.stack(terms).sum().backward(torch.tensor(reducer.root_scale))
    reducer.after(rank)


def in_the_tree(rows: Gradients, index: int) -> torch.Tensor | None:
    """The definition: level by level, left + right, a missing one as zeros."""
    if all(row[index] is None for row in rows):
        return None
    scale = torch.tensor(1.0 / len(rows))
    zeros = torch.zeros(SHAPES[index])
    level = [zeros if (value := row[index]) is None else value * scale for row in rows]
    while len(level) > 1:
        level = [sum_of(level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


def sum_of(nodes: Sequence[torch.Tensor]) -> torch.Tensor:
    return nodes[0] if len(nodes) == 1 else nodes[0] + nodes[1]


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """An assignment of 1 to 9 virtual workers to at most 4 workers, and some missing gradients."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda c: sum(c) <= 9))
    places = st.tuples(st.integers(0, sum(counts) - 1), st.integers(0, len(SHAPES) - 1))
    return tuple(counts), tuple(draw(st.lists(places, max_size=2 * sum(counts), unique=True)))


@given(splits())
@settings(max_examples=30)
def test_tree_is_the_tree_on_every_split(case: tuple[tuple[int, ...], tuple[tuple[int, int], ...]]) -> None:
    counts, missing = case
    rows = gradients(sum(counts), missing)
    expected = [in_the_tree(rows, index) for index in range(len(SHAPES))]
    for result in reduce_on(TreeReducer, counts, rows):
        assert all(same_bits(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("counts", [(4, 4), (3, 2, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("kind", [TreeReducer, DdpReducer])
def test_sockets_and_shared_memory_give_the_same_bits(
    kind: Any, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = gradients(sum(counts), [(0, 1)])
    shared = reduce_on(kind, counts, rows, steps=2)
    monkeypatch.setattr(exchange, "map_segments", lambda group, sizes: None)
    sockets = reduce_on(kind, counts, rows, steps=2)
    for one, other in zip(shared, sockets, strict=True):
        assert all(same_bits(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("virtual_workers", [2, 3, 5])
def test_ddp_is_what_gloo_sums(virtual_workers: int) -> None:
    rows = gradients(virtual_workers)
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    (bucket,) = ddp_buckets(params, [range(len(params))], None, find_unused=False)

    def all_reduced(group: Group) -> torch.Tensor:
        flat = torch.cat([value.view(-1) for index in bucket.indices if (value := rows[group.rank][index]) is not None])
        flat = flat * (1.0 / virtual_workers)
        group.all_reduce(flat)
        return flat

    expected = on_workers(virtual_workers, all_reduced)[0]
    for counts in [(virtual_workers,), (virtual_workers - 1, 1), (1,) * virtual_workers]:
        for result in reduce_on(DdpReducer, counts, rows):
            flat = torch.cat([value.view(-1) for index in bucket.indices if (value := result[index]) is not None])
            assert same_bits(flat, expected)


@pytest.mark.parametrize("kind", [TreeReducer, DdpReducer])
def test_full_buckets_are_exchanged_while_the_last_backward_goes_on(kind: Any) -> None:
    """The gradient of the first parameter comes only when the others have been exchanged; the second step is sent so,
    in the first `ddp` has one bucket for all.
    """

    def work(group: Group) -> list[bool]:
        params = [torch.nn.Parameter(torch.ones(300_000)) for _ in range(2)]  # more than the first bucket's 1 MiB each
        reducer = kind(params, ["first", "last"], group, Assignment((1, 1)))
        seen: list[bool] = []
        for step in range(2):
            exchanged = threading.Event()
            lane = reducer._lanes[0]
            real = type(lane).reduce

            def reduce(lane: Any = lane, real: Any = real, exchanged: threading.Event = exchanged) -> None:
                real(lane)
                exchanged.set()

            lane.reduce = reduce
            reducer.drop_gradients()
            reducer.before(group.rank, marks_of(params), first=True, final=True)
            hidden = params[0] * 2.0
            if step == 1:
                hidden.register_hook(lambda _, exchanged=exchanged: seen.append(exchanged.wait(20)))
            (hidden * params[1]).sum().backward()
            reducer.after(group.rank)
            reducer.finish(finite=True, fingerprint=0, buffer_bytes=0)
        reducer.close()
        return seen

    assert on_workers(2, work) == [[True], [True]]


@pytest.mark.parametrize("virtual_workers", [1, 2, 5, 8, 16, 23])
def test_the_tree_keeps_few_sets_of_gradients_and_adds_in_place(virtual_workers: int) -> None:
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    names = [str(index) for index in range(len(SHAPES))]
    reducer = TreeReducer(params, names, Group(0, 1), Assignment((virtual_workers,)))
    rows = gradients(virtual_workers)
    known: set[int] = set()
    for rank in range(virtual_workers):
        backward(reducer, params, rank, rows[rank])
        sets = [partial.grads if partial.grads is not None else grads_of(params) for partial in reducer._stack]
        assert len(sets) <= virtual_workers.bit_length()
        held = {id(grad) for grads in sets for grad in grads}
        arrived = {id(param.grad) for param in params}
        assert held <= known | arrived, "sums lie where gradients lay"
        known = held
    reducer.finish(finite=True, fingerprint=0, buffer_bytes=0)
    assert all(same_bits(param.grad, in_the_tree(rows, index)) for index, param in enumerate(params))


@pytest.mark.parametrize("kind", [TreeReducer, DdpReducer])
def test_a_dropped_step_leaves_nothing_behind(kind: Any) -> None:
    rows = gradients(4)
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = kind(params, [str(index) for index in range(len(SHAPES))], Group(0, 1), Assignment((4,)))
    for rank in (0, 1, 2):
        backward(reducer, params, rank, rows[3 - rank])
    reducer.abandon()
    assert all(param.grad is None for param in params)
    for rank in range(4):
        backward(reducer, params, rank, rows[rank])
    reducer.finish(finite=True, fingerprint=0, buffer_bytes=0)
    (expected,) = reduce_on(kind, (4,), rows)
    assert all(same_bits(param.grad, value) for param, value in zip(params, expected, strict=True))


def test_workers_agree_on_the_header() -> None:
    assignment = Assignment((1, 1))

    def work(group: Group) -> Header:
        params = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
        reducer = TreeReducer(params, ["a", "b"], group, assignment)
        reducer.before(group.rank, marks_of(reducer.params), first=True, final=True)
        if group.rank == 1:
            params[1].sum().backward()
        reducer.after(group.rank)
        header = reducer.finish(finite=group.rank == 0, fingerprint=5 + group.rank, buffer_bytes=64 * group.rank)
        reducer.close()
        return header

    expected = Header(used=(False, True), finite=False, agreed=False, buffer_bytes=64)
    assert on_workers(2, work) == [expected, expected]


def test_a_gradient_that_comes_twice_is_refused() -> None:
    """What reentrant checkpointing of a shared module does: two accumulations in one backward pass."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor, param: torch.nn.Parameter) -> torch.Tensor:
            ctx.param = param
            return value.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            with torch.enable_grad():
                (ctx.param * 2.0).sum().backward()
            return grad, None

    def work(group: Group) -> str:
        param = torch.nn.Parameter(torch.ones(2))
        reducer = TreeReducer([param], ["shared.weight"], group, Assignment((1, 1)))
        reducer.before(group.rank, marks_of(reducer.params), first=True, final=True)
        inputs = torch.ones(2, requires_grad=True)
        loss = Twice.apply(Twice.apply(inputs, param), param).sum()
        with pytest.raises(UsageError, match=r"'shared.weight' got its gradient twice .* use_reentrant=False"):
            loss.backward()
        return "refused"

    assert on_workers(2, work) == ["refused", "refused"]


def test_the_memory_of_a_view_is_given_back_with_the_view_and_not_before() -> None:
    params = [torch.nn.Parameter(torch.zeros(1000))]

    def work(group: Group) -> tuple[bool, bool]:
        lanes = weakref.ref(tree_exchange(params, group, Assignment((1, 1))).lanes[0])
        held = lanes() is not None
        group.close()
        return held, lanes() is None

    assert on_workers(2, work) == [(True, True)] * 2
