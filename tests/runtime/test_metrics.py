"""Logged values: their mean over virtual workers, the same whoever computed what."""

import math
import struct
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError, WorkerLost
from melodeon.runtime.group import Group
from melodeon.runtime.metrics import Metrics, Row, mean
from tests.runtime.threads import on_workers

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=1, max_size=20))
def test_the_mean_of_equal_weights(values: list[float]) -> None:
    got = mean({rank: (1.0, value) for rank, value in enumerate(values)}, len(values))
    assert got == pytest.approx(math.fsum(values) / len(values), abs=1e-6)


def test_the_mean_weighs_and_passes_over_the_silent() -> None:
    assert mean({0: (2.0, 1.0), 3: (1.0, 4.0)}, 5) == 2.0
    assert mean({0: (0.0, math.nan), 1: (1.0, 4.0)}, 2) == 4.0  # a batch of padding says nothing, not even NaN
    assert math.isnan(mean({}, 3))


@pytest.mark.parametrize("split", [(range(5),), (range(3), range(3, 5)), (range(1), range(1, 4), range(4, 5))])
def test_rows_are_the_same_on_every_split(split: tuple[range, ...]) -> None:
    def work(group: Group) -> list[Row]:
        rows: list[Row] = []
        metrics = Metrics(group, 5, 2, rows.append)
        for step in range(4):
            for rank in split[group.rank]:
                noise = math.sin(7 * step + rank) * 10.0**rank
                metrics.add(step, step // 3, rank, 1.0 + rank % 2, {"loss": noise, "odd": 1.0 if rank % 2 else None})
            metrics.boundary(step + 1)
        return rows

    everyone = [work(Group(0, 1))] if len(split) == 1 else on_workers(len(split), work)
    assert all(rows == everyone[0] for rows in everyone)
    assert [(row["step"], row["epoch"]) for row in everyone[0]] == [(1, 0), (2, 0), (3, 0), (4, 1)]
    assert all(row["odd"] == 1.0 for row in everyone[0])
    bits = [struct.pack("d", row["loss"]).hex() for row in everyone[0]]
    assert bits == [
        struct.pack("d", mean({r: (1.0 + r % 2, math.sin(7 * s + r) * 10.0**r) for r in range(5)}, 5)).hex()
        for s in range(4)
    ]


def test_whoever_came_later_knows_the_epochs_of_the_steps_that_others_tell_of() -> None:
    def work(group: Group) -> list[Row]:
        rows: list[Row] = []
        metrics = Metrics(group, 2, 4, rows.append)
        for step in range(4):
            if group.rank == 1 or step == 3:  # the one that writes has come for the last step
                metrics.add(step, 3 + step // 2, group.rank, 1.0, {"loss": 1.0})
            metrics.boundary(step + 1)
        return rows

    for rows in on_workers(2, work):
        assert [(row["step"], row["epoch"]) for row in rows] == [(1, 3), (2, 3), (3, 4), (4, 4)]


def test_a_script_is_quiet_only_after_a_whole_step_without_a_word() -> None:
    metrics = Metrics(Group(0, 1), 2, 1, lambda _: None)
    assert not metrics.quiet  # it may log at the end of its first step
    metrics.boundary(1)
    assert metrics.quiet
    metrics.add(1, 0, 0, 1.0, {"loss": 1.0})
    metrics.boundary(2)
    assert not metrics.quiet


def test_of_those_without_samples_alone_nothing_is_told() -> None:
    rows: list[Row] = []
    metrics = Metrics(Group(0, 1), 4, 1, rows.append)
    metrics.add(0, 0, 3, 0.0, {"loss": 1.0})
    metrics.boundary(1)
    assert rows == [{"step": 1, "epoch": 0}]


def test_a_value_is_kept_as_it_was_logged() -> None:
    rows: list[Row] = []
    metrics = Metrics(Group(0, 1), 1, 1, rows.append)
    value = torch.tensor([2.0], requires_grad=True)
    metrics.add(0, 0, 0, 1.0, {"value": value})
    with torch.no_grad():
        value.fill_(9.0)
    metrics.flush(1)
    assert rows == [{"step": 1, "epoch": 0, "value": 2.0}]


def test_a_second_value_replaces_and_a_dropped_step_is_forgotten() -> None:
    rows: list[Row] = []
    metrics = Metrics(Group(0, 1), 1, 1, rows.append)
    metrics.add(0, 0, 0, 1.0, {"value": 1})
    metrics.add(0, 0, 0, 1.0, {"value": True})
    metrics.add(1, 0, 0, 1.0, {"value": 3.0})
    metrics.forget(1)
    metrics.flush(2)
    assert rows == [{"step": 1, "epoch": 0, "value": 1.0}]
    assert metrics.latest == rows[-1]


def test_what_was_said_in_a_step_that_others_finished_is_told_and_no_other_before_it_is_done() -> None:
    rows: list[Row] = []
    metrics = Metrics(Group(0, 1), 1, 1, rows.append)
    metrics.add(0, 0, 0, 1.0, {"value": 1.0})
    metrics.add(1, 0, 0, 1.0, {"value": 2.0})  # and then this step is given up
    metrics.boundary(1)
    assert rows == [{"step": 1, "epoch": 0, "value": 1.0}]
    metrics.boundary(2)  # the others had it, and it was copied from them
    assert rows[1:] == [{"step": 2, "epoch": 0, "value": 2.0}]


class Losing(Group):
    """Somebody is lost in its first exchange."""

    lost = False

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        if not self.lost:
            self.lost = True
            raise WorkerLost("a peer is gone")
        return super().gather_bytes(payload)


def test_what_could_not_be_exchanged_is_told_with_the_next() -> None:
    rows: list[Row] = []
    metrics = Metrics(Losing(0, 1), 1, 1, rows.append)
    metrics.add(0, 0, 0, 1.0, {"value": 1.0})
    with pytest.raises(WorkerLost):
        metrics.boundary(1)
    metrics.add(1, 0, 0, 1.0, {"value": 2.0})
    metrics.boundary(2)
    assert rows == [{"step": 1, "epoch": 0, "value": 1.0}, {"step": 2, "epoch": 0, "value": 2.0}]


class Deaf(Group):
    """One that hears of a lost peer before the answer to its first exchange, which the others have had."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group: Group | None = group

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        assert self._group is not None
        answer = self._group.gather_bytes(payload)
        if self.rank > 0:
            return answer
        raise WorkerLost("a peer is gone")


def test_an_exchange_that_only_some_have_finished_gives_the_others_the_same_row_in_the_next_view() -> None:
    """Of three workers the last is lost; the first, who writes, has not had the answer, and the second has."""

    def work(group: Group) -> list[Row]:
        rows: list[Row] = []
        metrics = Metrics(Deaf(group), 3, 1, rows.append)
        metrics.add(0, 2, group.rank, 1.0, {"value": 10.0**group.rank})
        with suppress(WorkerLost):
            metrics.boundary(1)
        if group.rank == 2:
            metrics = Metrics(group, 3, 1, rows.append)  # another one in its place
        metrics.group = group
        metrics.boundary(1)  # the boundary is done again
        metrics.add(1, 3, group.rank, 1.0, {"value": 1.0})
        metrics.boundary(2)
        return rows

    first, second, _ = on_workers(3, work)
    row = {"step": 1, "epoch": 2, "value": 37.0}
    assert first == [row, {"step": 2, "epoch": 3, "value": 1.0}]
    assert second[:2] == [row, row]  # of which the journal keeps one


def test_an_exchange_before_somebody_leaves_that_only_some_have_finished_is_told_again_with_the_next() -> None:
    """It is not done again by itself, as one at a boundary is."""

    def work(group: Group) -> list[Row]:
        rows: list[Row] = []
        metrics = Metrics(Deaf(group), 3, 2, rows.append)
        metrics.add(0, 2, group.rank, 1.0, {"value": 10.0**group.rank})
        metrics.boundary(1)
        with suppress(WorkerLost):
            metrics.flush(1)
        metrics.group = group
        metrics.add(1, 2, group.rank, 1.0, {"value": 1.0})
        metrics.boundary(2)
        metrics.add(2, 2, group.rank, 1.0, {"value": 2.0})
        metrics.flush(3)
        return rows

    first, *_ = on_workers(3, work)
    assert [(row["step"], row["value"]) for row in first] == [(1, 37.0), (2, 1.0), (3, 2.0)]


@pytest.mark.parametrize("value", [torch.ones(2), "high", [1.0], object(), 10**400, torch.tensor(1j), 1j])
def test_only_numbers(value: object) -> None:
    with pytest.raises(UsageError, match=r"job.log\(x=...\) was given .*: log one number"):
        Metrics(Group(0, 1), 1, 1, lambda row: None).add(0, 0, 0, 1.0, {"x": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["step", "epoch"])
def test_names_of_columns_are_taken(name: str) -> None:
    with pytest.raises(UsageError, match=f"job.log\\({name}=...\\)"):
        Metrics(Group(0, 1), 1, 1, lambda row: None).add(0, 0, 0, 1.0, {name: 1.0})
