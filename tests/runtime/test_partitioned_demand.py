"""Partitions on demand: each sample once an epoch, whoever comes, leaves or is lost; nobody waits for nothing."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.coord.ledger import Ledger, LedgerState
from melodeon.core.errors import MelodeonError
from melodeon.core.partitions import Progress
from melodeon.data import Partitioned
from melodeon.runtime.partitioned_demand import Granted
from tests.runtime.partitioned_desk import SEED, Job, numbered


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def once(data: Partitioned) -> Counter[int]:
    return Counter(range(len(data)))


actions = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "hear", "tell", "ahead", "ahead", "lose", "leave", "join"]), st.integers(0, 9)
    ),
    min_size=3,
    max_size=25,
)


def act(job: Job, what: str, which: int) -> None:
    worker = job.workers[which % len(job.workers)]
    if what == "step":
        job.step()
    elif what == "hear":
        job.desk.hear()
    elif what == "tell":
        job.desk.tell(worker)
    elif what == "join" and len(job.workers) < job.virtual_workers:
        job.join()
    elif what in ("ahead", "lose") and len(job.workers) > 1:
        job.lose_in_step(worker, ahead=what == "ahead")
    elif what == "leave" and len(job.workers) > 1:
        job.leave(worker)


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any),
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 3),
    wishes=actions,
)
def test_each_sample_once_an_epoch_through_anything(
    sizes: list[int], workers: int, batch_size: int, wishes: list[tuple[str, int]]
) -> None:
    data = numbered(sizes)
    job = Job(data, workers=workers, virtual_workers=5, batch_size=batch_size)
    epoch = 0
    for what, which in [*wishes, ("end", 0)]:
        if what == "end":
            job.finish_epoch()
        else:
            act(job, what, which)
        if job.epoch > epoch:
            assert job.used == once(data)
            job.used.clear()
            epoch = job.epoch
    assert epoch > 0
    job.close()


def test_workers_with_nothing_left_weigh_nothing_until_all_are_done() -> None:
    data = numbered([2, 2, 8])
    job = Job(data, workers=3, virtual_workers=3, batch_size=2)
    counts = [[batch.num_samples for batch in job.step()] for _ in range(4)]
    assert job.epoch == 1
    assert sorted(counts[0]) == [2, 2, 2]
    assert [sorted(one) for one in counts[1:]] == [[0, 0, 2]] * 3
    assert job.used == once(data)
    job.close()


def test_more_workers_than_partitions() -> None:
    data = numbered([0, 7])
    job = Job(data, workers=4, virtual_workers=4, batch_size=2)
    assert job.finish_epoch() == 4
    assert job.finish_epoch() == 4
    assert job.used == once(data) + once(data)
    job.close()


def test_epochs_differ_in_their_sequence() -> None:
    data = numbered([6, 6, 6])
    job = Job(data, workers=1, virtual_workers=1, batch_size=18)
    (first,), (second,) = job.step(), job.step()
    assert sorted(first.data.tolist()) == sorted(second.data.tolist()) == list(range(18))
    assert first.data.tolist() != second.data.tolist()
    job.close()


def test_a_resumed_job_goes_on_where_the_state_was_taken() -> None:
    data = numbered([5, 9, 4, 6])
    job = Job(data, workers=2, virtual_workers=4, batch_size=1)
    for _ in range(3):
        job.step()
    used, state, cursor = job.used, job.feeds[0].state_dict(), job.cursor
    job.close()
    again = Job(data, workers=3, virtual_workers=4, batch_size=1)
    again.cursor, again.used = cursor, used
    for feed in again.feeds.values():
        feed.load_state_dict(state)
    again.finish_epoch()
    assert again.used == once(data)
    again.close()


def test_the_partition_behind_is_read_while_this_one_is_used() -> None:
    opened: list[str] = []
    second = threading.Event()

    def rows(name: str) -> list[int]:
        opened.append(name)
        if len(opened) == 2:
            second.set()
        return [0, 1, 2, 3]

    data = Partitioned(dict.fromkeys("abcdef", 4), rows, mode="on_demand")
    job = Job(data, workers=1, virtual_workers=1, batch_size=1)
    job.step()
    assert second.wait(10)
    assert len(set(opened)) == 2
    job.close()


def test_a_feed_asks_for_the_one_in_use_and_two_steps_more() -> None:
    job = Job(numbered([10] * 50), workers=2, virtual_workers=4, batch_size=10)
    assert [side.num_wanted for side in job.sides.values()] == [5, 5]
    job.leave(1)
    assert job.sides[0].num_wanted == 9
    job.close()


def test_one_partition_used_by_two_workers_is_a_defect_that_is_told() -> None:
    job = Job(numbered([4, 4]), workers=1, virtual_workers=1, batch_size=2)
    with pytest.raises(MelodeonError, match="'p1' was used by two workers"):
        job.feeds[0].commit([{"p0": 1, "p1": 2}, {"p1": 2}])
    job.close()


class Alarm(Exception):
    pass


def test_a_waiting_worker_hears_the_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(numbered([4]), workers=1, virtual_workers=1, batch_size=2)

    def alarmed(after: int = -1) -> Granted:
        if after >= 0:
            raise Alarm
        return Granted(0)

    monkeypatch.setattr(job.sides[0], "grants", alarmed)
    with pytest.raises(Alarm):
        job.take()
    monkeypatch.undo()
    job.finish_epoch()
    assert job.used == Counter(range(4))
    job.close()


# -- side by side ------------------------------------------------------------------------------------------------------


class LiveDesk:
    """A master that answers at once, to workers in threads that really wait."""

    def __init__(self, data: Partitioned, workers: int) -> None:
        self.changed = threading.Condition()
        self.ledger = Ledger(data.catalogue, LedgerState(seed=SEED, shuffle=True))
        self.version = 0
        self.workers = range(workers)
        self.wanted = dict.fromkeys(self.workers, 0)
        self.epochs = dict.fromkeys(self.workers, -1)

    def hear(self, worker: int, epoch: int) -> None:
        self.epochs[worker] = epoch
        before = self.ledger.state
        if len(set(self.epochs.values())) == 1:
            self.ledger.new_epoch(epoch)
        for each in self.workers:
            if self.epochs[each] == self.ledger.epoch:
                self.ledger.want(each, self.wanted[each])
        if self.ledger.state != before:
            self.version += 1
            self.changed.notify_all()


class LiveSide:
    def __init__(self, desk: LiveDesk, worker: int) -> None:
        self.desk, self.worker = desk, worker

    def want(self, num: int) -> None:
        with self.desk.changed:
            self.desk.wanted[self.worker] = num
            self.desk.hear(self.worker, max(self.desk.epochs[self.worker], 0))

    def grants(self, after: int = -1) -> Granted:
        desk = self.desk
        with desk.changed:
            assert desk.changed.wait_for(lambda: desk.version > after, timeout=30), "waited in vain"
            return Granted(desk.version, desk.ledger.epoch, desk.ledger.held(self.worker), desk.ledger.holders)

    def members(self) -> Collection[int]:
        return self.desk.workers

    def used(self, progress: Progress) -> None:
        """The test tells the desk itself."""

    began = used


def test_workers_side_by_side() -> None:
    num = 3
    data = numbered([5, 1, 9, 0, 4, 4, 12, 3, 3])
    plan = data.plan(num, 2, "exact")
    desk, barrier = LiveDesk(data, num), threading.Barrier(num, timeout=30)
    pending: list[dict[str, int]] = [{} for _ in range(num)]
    seen: list[list[tuple[int, int]]] = [[] for _ in range(num)]

    def work(worker: int) -> Iterator[None]:
        feed = data.feed(plan=plan, grants=LiveSide(desk, worker), seed=SEED, shuffle=True)
        feed.start(range(worker, worker + 1), 0)
        cursor = step = 0
        while cursor < plan.cursor(3):
            batch = feed.take(cursor, worker)
            pending[worker] = feed.pending()
            barrier.wait()
            everyone = list(pending)
            barrier.wait()
            feed.commit(everyone)
            step += 1
            with desk.changed:
                desk.ledger.commit(feed.progress, generation=1, step=step)
                desk.hear(worker, feed.progress.epoch)
            samples = batch.data.tolist()[: batch.num_samples]
            seen[worker] += [(plan.at(cursor)[0], sample) for sample in samples]
            cursor = feed.after(cursor)
        feed.close()
        yield

    threads = [threading.Thread(target=lambda worker=worker: list(work(worker)), daemon=True) for worker in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = Counter(row for rows in seen for row in rows)
    assert found == Counter((epoch, sample) for epoch in range(3) for sample in range(len(data)))
    assert all(seen)
