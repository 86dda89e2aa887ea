"""The feed with real loader processes: same bits from any pool and split, nothing lost, repeated or restarted."""

import hashlib
import multiprocessing
import os
import random
import select
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, Subset, get_worker_info

from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Batch, Feed
from tests.runtime.feed_datasets import Noisy, Numbers, started

# Three loader processes on two cores are meant here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

V = 4


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def noisy_collate(samples):
    return torch.utils.data.default_collate(samples), torch.rand(2)


def bits(batch: Batch) -> str:
    (index, a, b, c), d = batch.data
    digest = hashlib.blake2b(digest_size=8)
    for tensor in (index, a, b, c, d):
        digest.update(tensor.numpy().tobytes())
    return f"{digest.hexdigest()} {batch.weight} {batch.num_samples}"


def take_bits(feed: Feed, ranks: range, cursors: range) -> dict[tuple[int, int], str]:
    return {(cursor, rank): bits(feed.take(cursor, rank)) for cursor in cursors for rank in ranks}


@pytest.fixture(scope="module")
def plan() -> EpochPlan:
    return EpochPlan(22, V, 2)  # 3 steps an epoch, the last one short and padded


@pytest.fixture(scope="module")
def reference(plan) -> dict[tuple[int, int], str]:
    """Every batch of the first 4 epochs."""
    with started(Noisy(), plan, collate_fn=noisy_collate) as feed:
        found = take_bits(feed, range(V), range(12))
    assert len(set(found.values())) == len(found)
    return found


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("split", [(4,), (3, 1), (1, 2, 1)])
def test_bits_depend_neither_on_the_pool_nor_on_the_split(plan, reference, num_workers, split):
    found, start = {}, 0
    for count in split:
        ranks = range(start, start + count)
        with started(Noisy(), plan, ranks, num_workers=num_workers, collate_fn=noisy_collate, stop=7) as feed:
            found |= take_bits(feed, ranks, range(7))
        start += count
    assert found == {slot: value for slot, value in reference.items() if slot[0] < 7}


class Threads(Numbers):
    def __getitem__(self, index):
        return torch.get_num_threads()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_are_made_on_one_thread_wherever_they_are_made(plan, num_workers):
    torch.set_num_threads(2)
    with started(Threads(22), plan, num_workers=num_workers) as feed:
        assert feed.take(0, 0).data.tolist() == [1, 1]
    assert torch.get_num_threads() == 2


ranges = st.tuples(st.integers(0, V - 1), st.integers(1, V)).map(lambda p: range(p[0], min(p[0] + p[1], V)))
stays = st.lists(st.tuples(ranges, st.integers(1, 4), st.integers(0, 3)), min_size=2, max_size=4)


@settings(max_examples=12, deadline=None)
@given(stays=stays, num_workers=st.sampled_from([0, 1, 2]), prefetch_factor=st.integers(1, 3))
def test_reassign_keeps_the_bits_and_the_processes(plan, reference, stays, num_workers, prefetch_factor):
    """Each stay: ranks, full steps taken, then batches of the next step, which is run again under the new ranks."""
    cursor, pids = 0, None
    options = {"num_workers": num_workers, "prefetch_factor": prefetch_factor, "collate_fn": noisy_collate}
    with started(Noisy(), plan, stays[0][0], **options) as feed:
        for ranks, num_steps, num_more in stays:
            feed.reassign(ranks, cursor)
            end = min(cursor + num_steps, 11)
            found = take_bits(feed, ranks, range(cursor, end))
            found |= {(end, rank): bits(feed.take(end, rank)) for rank in ranks[:num_more]}
            assert found == {slot: reference[slot] for slot in found}
            cursor = end
            now = {process.pid for process in multiprocessing.active_children()}
            pids = pids or now
            assert now == pids
            assert len(now) >= num_workers


def test_reassign_loads_nothing_twice_that_stays_ours(tmp_path):
    log = tmp_path / "loaded"
    plan = EpochPlan(64, V, 1)
    with started(Numbers(64, log), plan, range(3), num_workers=2, prefetch_factor=3, shuffle=False, stop=8) as feed:
        taken = [feed.take(cursor, rank) for cursor in range(2) for rank in range(3)]
        feed.reassign(range(1, 4), 2)
        taken += [feed.take(cursor, rank) for cursor in range(2, 8) for rank in range(1, 4)]
    slots = [(batch.cursor, batch.rank) for batch in taken]
    assert slots == [(c, r) for c in range(2) for r in range(3)] + [(c, r) for c in range(2, 8) for r in range(1, 4)]
    assert [int(batch.data) for batch in taken] == [cursor * V + rank for cursor, rank in slots]
    loaded = [int(line) for line in log.read_text().split()]
    assert len(loaded) == len(set(loaded))
    # Only batches of rank 0 that were under way are loaded for nothing.
    assert all(index % V == 0 for index in set(loaded) - {int(batch.data) for batch in taken})


def test_reassign_keeps_no_batch_of_others_and_looks_no_further_than_the_prefetch(monkeypatch):
    asked: list[tuple[int, int]] = []
    with started(Numbers(400), EpochPlan(400, V, 1), range(3, 4), num_workers=2, prefetch_factor=2) as feed:
        make_key = feed._key
        monkeypatch.setattr(feed, "_key", lambda slot: asked.append(slot) or make_key(slot))
        feed.reassign(range(4), 0)
        feed.take(0, 0)
        # (0, 3) to (3, 3) were under way; missing among the next four were these.
        assert asked == [(0, 0), (0, 1), (0, 2), (1, 0)]
        feed.reassign(range(2), 1)
        for cursor in range(1, 6):
            for rank in range(2):
                feed.take(cursor, rank)
                assert not any(slot < (cursor, rank) or slot[1] >= 2 for slot in feed._loaded)


def test_a_jump_to_another_cursor_gives_its_batches(plan, reference):
    with started(Noisy(), plan, num_workers=1, collate_fn=noisy_collate) as feed:
        for cursor, rank in [(0, 0), (0, 1), (3, 0), (3, 1), (1, 2), (9, 3), (10, 0)]:
            assert bits(feed.take(cursor, rank)) == reference[cursor, rank]


def test_nothing_is_loaded_past_the_prefetch_or_the_stop(tmp_path):
    log, plan = tmp_path / "loaded", EpochPlan(400, 2, 1)
    with started(Numbers(400, log), plan, num_workers=2, prefetch_factor=2, shuffle=False, stop=40) as feed:
        for cursor in range(10):
            for rank in range(2):
                feed.take(cursor, rank)
                # All that was asked of the pool: what was taken, and at most 4 more.
                assert max(map(int, log.read_text().split())) <= cursor * 2 + rank + 4
        feed.stop = 11
        feed.take(10, 0), feed.take(10, 1)
        feed.stop = 14  # goes on after a stop, with the places of the pool that were idle
        for cursor in range(11, 14):
            for rank in range(2):
                assert int(feed.take(cursor, rank).data) == cursor * 2 + rank
    assert sorted(map(int, log.read_text().split())) == list(range(28))


def test_the_order_is_that_of_a_stock_loader_for_each_rank():
    plan = EpochPlan(23, V, 2, "pad")
    with started(Numbers(23), plan, num_workers=1) as feed:
        cursors = range(2 * plan.steps_per_epoch)
        ours = {(cursor, rank): feed.take(cursor, rank).data.tolist() for cursor in cursors for rank in range(V)}
    for rank in range(V):
        sampler = DistributedSampler(Numbers(23), V, rank, seed=3)
        loader, cursor = DataLoader(Numbers(23), batch_size=2, sampler=sampler), 0
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in loader:
                assert ours[cursor, rank] == batch.tolist()
                cursor += 1
        assert cursor == len(cursors)


def test_exact_gives_each_sample_once_an_epoch_with_its_weight(plan):
    with started(Numbers(22), plan) as feed:
        for epoch in range(2):
            taken = [feed.take(plan.cursor(epoch, step), rank) for step in range(3) for rank in range(V)]
            assert sorted(int(i) for batch in taken for i in batch.data) == list(range(22))
            assert [batch.weight for batch in taken[:8]] == [1.0] * 8
            assert sum(batch.weight for batch in taken[8:]) == pytest.approx(V)
            assert sum(batch.num_samples for batch in taken) == 22


def test_the_process_generators_are_left_alone(plan):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    for num_workers in (0, 1):
        with started(Noisy(), plan, num_workers=num_workers) as feed:
            feed.take(0, 0), feed.take(0, 1)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_bits_are_the_same_for_a_caller_who_seeds_anyway(plan, reference):
    with started(Noisy(), plan, collate_fn=noisy_collate, keep_generators=False) as feed:
        assert take_bits(feed, range(V), range(3)) == {slot: reference[slot] for slot in reference if slot[0] < 3}


class Batched(Noisy):
    def __getitems__(self, indices):
        return [(index, -1) for index in indices]


def test_a_dataset_that_fetches_whole_batches_is_asked_to(plan):
    with started(Batched(), plan, shuffle=False) as feed:
        assert [column.tolist() for column in feed.take(0, 1).data] == [[1, 5], [-1, -1]]
    with started(Subset(Batched(40), range(22)), plan, shuffle=False) as feed:
        assert feed.take(0, 1).data[0].tolist() == [1, 5]


class Opened(Numbers):
    offset = 0

    def __getitem__(self, index):
        return index + self.offset


def open_dataset(process):
    get_worker_info().dataset.offset = 100


def test_worker_init_fn_reaches_the_users_dataset(plan):
    with started(Opened(22), plan, num_workers=1, worker_init_fn=open_dataset, shuffle=False) as feed:
        assert feed.take(0, 1).data.tolist() == [101, 105]


def test_loader_processes_may_be_spawned(plan):
    # The dataset is torch's own: a fresh interpreter cannot import this file by name.
    with started(torch.arange(22), plan, num_workers=1, multiprocessing_context="spawn", shuffle=False) as feed:
        assert feed.take(0, 1).data.tolist() == [1, 5]


def test_close_ends_the_processes_and_can_be_repeated(plan):
    before = set(multiprocessing.active_children())
    feed = Feed(Noisy(), plan=plan, seed=3, shuffle=True, num_workers=2)
    feed.start(range(V), 0)
    feed.take(0, 0)
    children = set(multiprocessing.active_children()) - before
    assert len(children) == 2
    feed.close()
    feed.close()
    assert [process.exitcode for process in children] == [0, 0]  # they went by themselves; PyTorch ends who does not


WORKER = """
import multiprocessing, sys, torch
from torch.utils.data._utils import worker
from melodeon.core.sampling import EpochPlan
from melodeon.runtime.feed import Feed
assert worker.MP_STATUS_CHECK_INTERVAL == 5.0
worker.MP_STATUS_CHECK_INTERVAL = 600.0  # PyTorch's own watch would be in time only now and then: leave it out
feed = Feed(torch.arange(22), plan=EpochPlan(22, 4, 2), seed=0, shuffle=True, num_workers=1)
feed.start(range(4), 0)
feed.take(0, 0)
print(*[process.pid for process in multiprocessing.active_children()], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
def test_loader_processes_end_with_a_killed_worker():
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        loader_process = os.pidfd_open(int(worker.stdout.readline()))
        worker.kill()
        ended, _, _ = select.select([loader_process], [], [], 30)
        os.close(loader_process)
    assert ended
