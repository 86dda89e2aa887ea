"""The book of partitions: whatever is asked, committed, run again or lost, each sample counts exactly once.

`Crew` is a job as the ledger sees one: workers that use what they hold step by step, the job's state kept by all of
them, and a master that hears of it late, ahead of time, or not at all.
"""

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.coord.ledger import Ledger, LedgerState
from melodeon.core.partitions import Catalogue, Line, Progress

SEED = 5


class Crew:
    def __init__(self, counts: list[int], workers: int) -> None:
        self.catalogue = Catalogue.of({f"p{number}": count for number, count in enumerate(counts)})
        self.ledger = Ledger(self.catalogue, LedgerState(seed=SEED, shuffle=True))
        self.members, self.next_worker = list(range(workers)), workers
        self.generation, self.step = 1, 0
        self.documents: dict[int, dict[str, int]] = {}
        self.epoch_of_document: dict[int, int] = {}
        self.used: Counter[tuple[str, int]] = Counter()
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.line = Line(self.catalogue, seed=SEED, epoch=epoch, shuffle=True)
        self.progress = self.line.begin()
        self.used.clear()
        self.ledger.new_epoch(epoch)

    def reload(self) -> None:
        """Another master takes over from what was stored."""
        stored = msgspec.msgpack.encode(self.ledger.state)
        self.ledger = Ledger(self.catalogue, msgspec.msgpack.decode(stored, type=LedgerState))

    def hand_out(self, worker: int, num: int) -> None:
        self.ledger.want(worker, num)
        self.documents[worker] = dict(self.ledger.held(worker))
        self.epoch_of_document[worker] = self.ledger.epoch

    def draw(self, worker: int, num: int) -> dict[str, int]:
        """What a step of a worker would use: from where the job's state stands, not where the master says."""
        drawn: dict[str, int] = {}
        if self.epoch_of_document.get(worker) != self.line.epoch:
            return drawn
        for name in self.documents[worker]:
            at = self.line.used(self.progress, name)
            take = min(num, self.line.size(name) - at)
            if take > 0:
                drawn[name] = at + take
                num -= take
        return drawn

    def run_step(self, num: int, *, told: bool, ahead: int | None = None) -> None:
        """One step. `ahead`: that worker alone commits it, says so and is lost; the others do not know of it."""
        drawn = {worker: self.draw(worker, num) for worker in self.members}
        everything: dict[str, int] = {}
        for one in drawn.values():
            assert not everything.keys() & one.keys(), "a partition in two workers' hands"
            everything |= one
        after = self.line.add(self.progress, everything)
        if ahead is not None:
            self.ledger.commit(after, generation=self.generation, step=self.step + 1)
            self.lose(ahead)
            return
        for name, at in everything.items():
            self.used.update((name, sample) for sample in range(self.line.used(self.progress, name), at))
        self.progress, self.step = after, self.step + 1
        if told:
            self.tell()

    def tell(self) -> bool:
        return self.ledger.commit(self.progress, generation=self.generation, step=self.step)

    def lose(self, worker: int) -> None:
        self.members.remove(worker)
        self.generation += 1
        self.ledger.lose(worker)

    def leave(self, worker: int) -> None:
        """By a planned view: the others have entered it when the master lets the partitions go."""
        self.members.remove(worker)
        self.generation += 1
        self.tell()
        self.ledger.leave(worker)

    def join(self) -> None:
        self.members.append(self.next_worker)
        self.next_worker += 1
        self.generation += 1

    def finish_epoch(self) -> None:
        """Left alone, the workers come to the end."""
        for _ in range(10_000):
            if self.line.num_used(self.progress) == self.line.num_samples:
                break
            self.tell()
            for worker in self.members:
                self.hand_out(worker, 2)
            before = self.used.total()
            self.run_step(3, told=True)
            assert self.used.total() > before, "samples are left, and nobody has any in hand"


sizes = st.lists(st.integers(0, 4), min_size=1, max_size=10).filter(any)
actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "want", "step", "untold", "ahead", "ahead", "lose", "leave", "join", "again", "reload"]
        ),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    min_size=4,
    max_size=40,
)


def act(crew: Crew, what: str, which: int, num: int) -> None:
    worker = crew.members[which % len(crew.members)]
    if what == "want":
        crew.hand_out(worker, num)
    elif what == "step":
        crew.run_step(num, told=True)
    elif what == "untold":
        crew.run_step(num, told=False)
    elif what == "join":
        crew.join()
    elif what == "again":
        crew.tell()
        assert not crew.tell()
    elif what == "reload":
        crew.reload()
    elif len(crew.members) > 1:
        if what == "ahead":
            crew.run_step(num, told=False, ahead=worker)
            if which % 2:  # the others say where they stand, and a newcomer is served before they are
                crew.join()
                crew.tell()
                crew.hand_out(crew.members[-1], num)
        elif what == "lose":
            crew.lose(worker)
        else:
            crew.leave(worker)


@settings(max_examples=400)
@given(counts=sizes, workers=st.integers(1, 4), epochs=st.lists(actions, min_size=1, max_size=3))
def test_each_sample_counts_once_through_anything(
    counts: list[int], workers: int, epochs: list[list[tuple[str, int, int]]]
) -> None:
    crew = Crew(counts, workers)
    for epoch, wishes in enumerate(epochs):
        if epoch:
            crew.begin(epoch)
        for what, which, num in wishes:
            if crew.line.num_used(crew.progress) == crew.line.num_samples:
                break  # the epoch is over: workers are at the next one, which the master hears from all
            act(crew, what, which, num)
        crew.finish_epoch()
        assert set(crew.used.values()) == {1}
        assert crew.used.total() == sum(counts)


def ledger(**counts: int) -> Ledger:
    book = Ledger(Catalogue.of(counts), LedgerState(seed=0, shuffle=False))
    book.new_epoch(0)
    return book


def test_partitions_go_out_from_the_front_and_asking_again_gives_no_more() -> None:
    book = ledger(a=4, b=4, c=4, d=4)
    assert book.want(1, 2) == {"a": 0, "b": 0}
    assert book.want(2, 1) == {"c": 0}
    assert book.want(1, 2) == {"a": 0, "b": 0}
    assert book.want(2, 5) == {"c": 0, "d": 0}
    assert book.want(3, 1) == {}
    assert book.holders == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_several_are_served_in_turn() -> None:
    book = ledger(a=4, b=4, c=4, d=4)
    book.want(2, 1)
    book.serve({1: 2, 2: 2, 3: 2})
    assert book.holders == {"a": 2, "b": 1, "c": 3, "d": 1}


def test_before_the_first_epoch_nothing_is_handed_out() -> None:
    book = Ledger(Catalogue.of({"a": 4}), LedgerState(seed=0, shuffle=False))
    assert (book.epoch, book.want(1, 1), book.num_left) == (-1, {}, 0)


def test_what_a_lost_worker_had_not_committed_is_handed_out_again_from_there() -> None:
    book = ledger(a=4, b=4)
    book.want(1, 1)
    book.commit(Progress(0, 0, {"a": 3}), generation=1, step=1)
    book.lose(1)
    assert book.want(2, 2) == {"a": 3, "b": 0}


def test_a_newer_view_may_say_less_and_holders_keep_what_they_then_need_again() -> None:
    """Worker 1 commits a step that uses up worker 2's partition, says so, and is lost before 2 has committed it."""
    book = ledger(a=4, b=4, c=4)
    book.want(1, 1)
    book.want(2, 1)
    book.commit(Progress(0, 2, {}), generation=1, step=1)
    assert book.num_left == 4
    book.lose(1)
    assert book.want(3, 9) == {"c": 0}
    assert book.commit(Progress(0, 0, {}), generation=2, step=0)
    assert book.want(3, 9) == {"a": 0, "c": 0}
    assert book.held(2) == {"b": 0}


def test_an_old_word_is_not_heard() -> None:
    book = ledger(a=4)
    assert book.commit(Progress(0, 0, {"a": 2}), generation=2, step=5)
    assert not book.commit(Progress(0, 0, {"a": 3}), generation=1, step=9)
    assert not book.commit(Progress(0, 0, {"a": 1}), generation=2, step=4)
    assert not book.commit(Progress(0, 0, {"a": 3}), generation=2, step=5)
    assert not book.commit(Progress(1, 0, {"a": 3}), generation=2, step=6)
    assert book.num_left == 2


def test_the_state_stays_small_in_a_large_set() -> None:
    book = Ledger(Catalogue.of({f"part-{n:05}": 1 for n in range(20_000)}), LedgerState(seed=0, shuffle=True))
    book.new_epoch(0)
    line = Line(book.catalogue, seed=0, epoch=0, shuffle=True)
    progress = line.begin()
    for step in range(2_000):
        used: dict[str, int] = {}
        for worker in range(4):
            for name in book.want(worker, 2):
                used[name] = 1
        progress = line.add(progress, used)
        assert book.commit(progress, generation=1, step=step)
    assert len(msgspec.msgpack.encode(book.state)) < 1_000
    assert progress.front > 7_000
