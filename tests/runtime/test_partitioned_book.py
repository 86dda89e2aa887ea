"""Partitions on demand in whole jobs: every sample once an epoch, on any workers, whoever is lost when."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.launch import Launch
from melodeon.runtime.partitioned_book import Book
from melodeon.runtime.partitioned_demand import DemandFeed
from tests.live.demand import NUM_SAMPLES, train, used
from tests.runtime.live.conductor import Conductor
from tests.runtime.loop.crew import run
from tests.runtime.partitioned_desk import SEED, numbered

RECORD = Launch(record_states=True)


def once(epochs: int) -> Counter[tuple[int, int]]:
    return Counter((epoch, sample) for epoch in range(epochs) for sample in range(NUM_SAMPLES))


@pytest.mark.parametrize("counts", [[4], [2, 2], [1, 2, 1], [1, 1, 1, 1]])
def test_a_job_without_a_master_uses_every_sample_once_an_epoch(counts: list[int], tmp_path: Path) -> None:
    first = run(train, counts, tmp_path / "first").well()
    assert Counter(used(first.folder)) == once(3)
    again = run(train, counts, tmp_path / "again").well()
    assert again.states == first.states  # the same workers, the same bits


def test_a_resumed_job_goes_on_behind_what_was_used(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    stopped = replace(RECORD, max_steps=17)
    first = run(train, [2, 2], tmp_path / "first", launch=stopped, checkpoints=kept).well()
    rest = run(train, [1, 2, 1], tmp_path / "rest", checkpoints=kept).well()
    assert Counter(used(first.folder)) + Counter(used(rest.folder)) == once(3)


def test_a_loop_that_is_left_skips_the_rest_of_its_epoch_only(tmp_path: Path) -> None:
    ended = run(train, [3, 1], tmp_path / "run", leave_at=1).well()
    found = Counter(used(ended.folder))
    assert found == Counter({key: 1 for key in once(3) if key[0] != 1 or key in found})
    assert 0 < sum(epoch == 1 for epoch, _ in found) < NUM_SAMPLES


def test_grows_shrinks_and_migrates(tmp_path: Path) -> None:
    with Conductor(tmp_path / "run", train, epochs=8, pace_s=0.01) as conductor:
        conductor.tour(grow_at=3, shrink_at=25)
        assert Counter(used(tmp_path / "run")) == once(8)


@pytest.mark.parametrize("point", ["step.begin", "step.header", "step.agreed", "step.commit", "step.committed"])
@pytest.mark.parametrize("step", [4, 21])
def test_a_worker_is_killed_inside_a_step(point: str, step: int, tmp_path: Path) -> None:
    with Conductor(tmp_path / "run", train, failpoints=f"{point}=kill@{step}/1", epochs=4, pace_s=0.005) as conductor:
        conductor.bereave()
        assert Counter(used(tmp_path / "run")) == once(4)


class Readers:
    """Workers with a book each, one virtual worker each, and views that not all of them enter."""

    def __init__(self) -> None:
        self.data = numbered([5, 1, 9, 0, 4, 4, 12, 3])
        self.plan = self.data.plan(4, 2, "exact")
        self.cursor, self.next_worker = 0, 0
        self.used: Counter[tuple[int, int]] = Counter()
        self.feeds: dict[int, tuple[DemandFeed, Book]] = {}
        self.join()

    def join(self) -> None:
        book = self.data.book(seed=SEED, shuffle=True)
        assert book is not None
        feed = self.data.feed(plan=self.plan, grants=book, seed=SEED, shuffle=True)
        if self.feeds:
            holder, its = next(iter(self.feeds.values()))
            book.restore(feed, its.capture(holder))
        self.feeds[self.next_worker] = feed, book
        self.next_worker += 1
        self.enter(self.feeds)

    def enter(self, seats: Iterable[int], who: Iterable[int] | None = None) -> None:
        seats = list(seats)
        for worker in seats if who is None else who:
            feed, book = self.feeds[worker]
            book.seat(worker, {seat: feed.num_wanted(1) for seat in seats})
            feed.reassign(range(1), self.cursor)

    def take(self) -> list[int]:
        found: list[int] = []
        for feed, _ in self.feeds.values():
            batch = feed.take(self.cursor, 0)
            found += batch.data.tolist()[: batch.num_samples]
        assert found, "a step without a sample"
        return found

    def step(self) -> None:
        epoch, _ = self.plan.at(self.cursor)
        self.used.update((epoch, sample) for sample in self.take())
        everyone = [feed.pending() for feed, _ in self.feeds.values()]
        for feed, _ in self.feeds.values():
            feed.commit(everyone)
        (self.cursor,) = {feed.after(self.cursor) for feed, _ in self.feeds.values()}

    def check(self) -> None:
        (_,) = {json.dumps(book.capture(feed)) for feed, book in self.feeds.values()}
        (_,) = {json.dumps(book.grants().holders, sort_keys=True) for _, book in self.feeds.values()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["step", "step", "join", "lose", "part"]), st.integers(0, 9)), max_size=25))
def test_all_books_are_alike_whoever_entered_which_view(actions: list[tuple[str, int]]) -> None:
    readers = Readers()
    try:
        for action, number in actions:
            workers = list(readers.feeds)
            chosen = workers[number % len(workers)]
            if action == "step":
                readers.step()
            elif action == "join" and len(workers) < 4:
                readers.join()
            elif action == "lose" and len(workers) > 1:
                readers.take()  # and nothing comes of it
                readers.feeds.pop(chosen)[0].close()
                readers.enter(readers.feeds)
            elif action == "part":
                # Only some enter a view with a newcomer, which is lost: all meet again without it.
                readers.enter([*workers, 99], workers[: number % len(workers)])
                readers.enter(workers)
            readers.check()
        epoch, _ = readers.plan.at(readers.cursor)
        while readers.plan.at(readers.cursor)[0] == epoch:
            readers.step()
            readers.check()
        assert readers.used == Counter((e, sample) for e in range(epoch + 1) for sample in range(len(readers.data)))
    finally:
        for feed, _ in readers.feeds.values():
            feed.close()
