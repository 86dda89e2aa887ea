"""Streams by name in `tree`, carried per virtual worker in `ddp`."""

import json
import random

import numpy as np
import pytest
import torch

from melodeon.runtime.random_streams import (
    CarriedStreams,
    DerivedStreams,
    Generators,
    read_generators,
    seed_all,
    write_generators,
)

CPU = torch.device("cpu")
Draw = tuple[float, float, float]


@pytest.fixture(autouse=True)
def _own_generators() -> object:
    before = read_generators(CPU)
    yield
    write_generators(before, CPU)


def draw() -> Draw:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_derived_stream_depends_on_its_name_alone() -> None:
    streams = DerivedStreams(3, CPU)
    streams.enter(5, 2)
    first = draw()
    draw()
    streams.leave(2)
    streams.enter(5, 2)
    assert draw() == first


def test_derived_streams_differ_by_step_rank_and_use() -> None:
    streams = DerivedStreams(3, CPU)
    seen = set()
    for step in range(3):
        for rank in range(3):
            streams.enter(step, rank)
            seen.add(draw())
        streams.commit(step, agreed=True)
        seen.add(draw())
        streams.outside(step)
        seen.add(draw())
    assert len(seen) == 3 * (3 + 2)


def test_carried_streams_run_on_like_processes_of_their_own() -> None:
    def process(rank: int) -> list[Draw]:
        seed_all(9, CPU)
        return [draw() for _ in range(1 + 3 * (rank + 1))]

    alone = {rank: process(rank) for rank in range(2)}
    seed_all(9, CPU)
    assert draw() == alone[0][0]  # drawn before the loop, as by every process
    streams = CarriedStreams(9, CPU, range(2))
    seen: dict[int, list[Draw]] = {0: [], 1: []}
    for step in range(3):
        for rank in range(2):
            streams.enter(step, rank)
            seen[rank] += [draw() for _ in range(rank + 1)]
            streams.leave(rank)
        streams.commit(step, agreed=streams.fingerprint() >= 0)
    assert seen == {rank: alone[rank][1:] for rank in range(2)}


def test_what_the_update_draws_moves_equal_streams_alike() -> None:
    seed_all(9, CPU)
    expected = [draw() for _ in range(3)]
    seed_all(9, CPU)
    streams = CarriedStreams(9, CPU, range(2))
    for rank in range(2):
        streams.enter(0, rank)
        assert draw() == expected[0]
        streams.leave(rank)
    streams.commit(0, agreed=True)
    assert draw() == expected[1]
    for rank in range(2):
        streams.enter(1, rank)
        assert draw() == expected[2]
        streams.leave(rank)


def test_unequal_streams_are_left_alone_by_what_the_update_draws() -> None:
    seed_all(9, CPU)
    streams = CarriedStreams(9, CPU, range(2))
    states: dict[int, Generators] = {}
    for rank in range(2):
        streams.enter(0, rank)
        for _ in range(rank):
            draw()
        streams.leave(rank)
        states[rank] = read_generators(CPU)
    assert streams.fingerprint() == -1
    streams.commit(0, agreed=False)
    draw()
    for rank in range(2):
        streams.enter(1, rank)
        assert read_generators(CPU).same(states[rank])
        streams.leave(rank)


def test_the_second_normal_of_a_pair_counts() -> None:
    """numpy keeps it aside: the position is the same before and after it is handed out."""
    seed_all(9, CPU)
    np.random.randn()
    one = read_generators(CPU)
    np.random.randn()
    two = read_generators(CPU)
    assert one.numpy is not None
    assert two.numpy is not None
    assert one.numpy["state"]["pos"] == two.numpy["state"]["pos"]
    assert not one.same(two)
    assert one.digest() != two.digest()


@pytest.mark.parametrize("change", [random.random, np.random.rand, lambda: torch.rand(()), lambda: random.gauss(0, 1)])
def test_a_change_of_any_generator_shows(change: object) -> None:
    before = read_generators(CPU)
    change()  # type: ignore[operator]
    after = read_generators(CPU)
    assert not before.same(after)
    assert before.digest() != after.digest()
    assert 0 <= after.digest() < 1 << 62


def test_states_survive_json() -> None:
    seed_all(9, CPU)
    random.gauss(0, 1), np.random.randn(), torch.randn(3)
    state = read_generators(CPU)
    expected = random.gauss(0, 1), float(np.random.randn()), torch.randn(3).tolist()
    write_generators(Generators.from_plain(json.loads(json.dumps(state.to_plain()))), CPU)
    assert (random.gauss(0, 1), float(np.random.randn()), torch.randn(3).tolist()) == expected


@pytest.mark.parametrize("equal", [True, False])
def test_a_restored_job_draws_as_the_undisturbed_one(equal: bool) -> None:
    def step(streams: CarriedStreams, number: int) -> list[Draw]:
        seen = []
        for rank in range(2):
            streams.enter(number, rank)
            seen += [draw() for _ in range(1 if equal else rank + 1)]
            streams.leave(rank)
        streams.commit(number, agreed=equal)
        return [*seen, draw()]

    seed_all(9, CPU)
    streams = CarriedStreams(9, CPU, range(2))
    step(streams, 0)
    kept = streams.capture()
    expected = step(streams, 1)
    seed_all(123, CPU)
    again = CarriedStreams(9, CPU, range(2))
    again.restore(kept, 1)
    assert step(again, 1) == expected


def test_a_loader_draws_one_number_from_every_virtual_worker() -> None:
    for equal in (True, False):
        seed_all(9, CPU)
        streams = CarriedStreams(9, CPU, range(2))
        for rank in range(2):
            streams.enter(0, rank)
            torch.rand(1 if equal else 1 + rank)
            streams.leave(rank)
        streams.commit(0, agreed=equal)
        streams.draw_loader_seed()
        for rank in range(2):
            streams.enter(1, rank)
            seen = float(torch.rand(()))
            streams.leave(rank)
            seed_all(9, CPU)
            torch.rand(1 if equal else 1 + rank)
            torch.empty((), dtype=torch.int64).random_()
            assert seen == float(torch.rand(()))
