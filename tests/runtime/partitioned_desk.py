"""A master that hands out partitions in this process, around the real ledger, and a job of feeds that ask it.

It hears of the workers, and they of it, only when a test says so or when a worker waits: then it hears all of them, as
a master would in time. If nothing new comes of that, the worker would wait for ever, and the test fails.
"""

from collections import Counter
from collections.abc import Collection

from melodeon.coord.ledger import Ledger, LedgerState
from melodeon.core.assignment import Assignment
from melodeon.core.partitions import Catalogue, Progress
from melodeon.data import Partitioned
from melodeon.runtime.feed import Batch
from melodeon.runtime.partitioned_demand import DemandFeed, Granted

SEED = 4


def numbered(sizes: list[int], *, block: int = 3) -> Partitioned:
    """Sample k of the set is k; every second partition is a stream."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]

    def rows(name: str) -> object:
        number = int(name[1:])
        found = range(firsts[number], firsts[number] + sizes[number])
        return list(found) if number % 2 else iter(found)

    names = [(f"p{number}", size) for number, size in enumerate(sizes)]
    return Partitioned(names, rows, mode="on_demand", block=block)  # type: ignore[arg-type]


class Counterside:
    """One worker's side of the counter: a `Grants`."""

    def __init__(self, desk: "Desk", worker: int) -> None:
        self.desk, self.worker = desk, worker
        self.num_wanted = 0
        self.granted = Granted(0)

    def want(self, num: int) -> None:
        self.num_wanted = num

    def grants(self, after: int = -1) -> Granted:
        if self.granted.number <= after:
            self.desk.hear()
            self.desk.tell(self.worker)
        assert self.granted.number > after, f"worker {self.worker} waits for what nobody will give it"
        return self.granted

    def members(self) -> Collection[int]:
        return self.desk.job.workers

    def used(self, progress: Progress) -> None:
        """The desk asks the feeds themselves."""

    began = used


class Desk:
    """The master's part."""

    def __init__(self, job: "Job", catalogue: Catalogue) -> None:
        self.job = job
        self.ledger = Ledger(catalogue, LedgerState(seed=SEED, shuffle=True))
        self.leavers: list[int] = []
        self.version = 0

    def hear(self) -> None:
        """Every member says where it stands and what it wants."""
        before = self.ledger.state
        for worker in self.leavers:
            self.ledger.leave(worker)
        self.leavers.clear()
        feeds = self.job.feeds
        epochs = {feed.progress.epoch for feed in feeds.values()}
        if len(epochs) == 1:
            self.ledger.new_epoch(epochs.pop())
        for worker in feeds:
            self.report(worker)
        there = [worker for worker, feed in feeds.items() if feed.progress.epoch == self.ledger.epoch]
        self.ledger.serve({worker: self.job.sides[worker].num_wanted for worker in there})
        self.version += self.ledger.state != before

    def report(self, worker: int) -> None:
        progress = self.job.feeds[worker].progress
        self.ledger.commit(progress, generation=self.job.generation, step=self.job.steps[worker])

    def tell(self, worker: int) -> None:
        """A worker gets the newest document."""
        if self.job.sides[worker].granted.number < self.version:
            self.job.sides[worker].granted = Granted(
                self.version, self.ledger.epoch, self.ledger.held(worker), self.ledger.holders
            )


class Job:
    """The workers' part: steps, and changes of who takes part in them."""

    def __init__(self, data: Partitioned, *, workers: int, virtual_workers: int, batch_size: int) -> None:
        self.data, self.virtual_workers = data, virtual_workers
        self.plan = data.plan(virtual_workers, batch_size, "exact")
        self.desk = Desk(self, data.catalogue)
        self.feeds: dict[int, DemandFeed] = {}
        self.sides: dict[int, Counterside] = {}
        self.steps: dict[int, int] = {}
        self.generation, self.cursor, self.next_worker = 0, 0, 0
        self.used: Counter[int] = Counter()
        for _ in range(workers):
            self._add()
        self._enter()

    @property
    def workers(self) -> list[int]:
        return list(self.feeds)

    @property
    def epoch(self) -> int:
        return self.plan.at(self.cursor)[0]

    def _add(self) -> int:
        worker, self.next_worker = self.next_worker, self.next_worker + 1
        self.sides[worker] = Counterside(self.desk, worker)
        self.feeds[worker] = self.data.feed(plan=self.plan, grants=self.sides[worker], seed=SEED, shuffle=True)
        self.steps[worker] = 0
        return worker

    def _enter(self) -> None:
        self.generation += 1
        assignment = Assignment.balanced(self.virtual_workers, len(self.feeds))
        self.ranks = {worker: assignment.ranks_of(rank) for rank, worker in enumerate(self.feeds)}
        for worker, feed in self.feeds.items():
            feed.reassign(self.ranks[worker], self.cursor)

    def take(self) -> list[Batch]:
        batches = [feed.take(self.cursor, rank) for worker, feed in self.feeds.items() for rank in self.ranks[worker]]
        assert any(batch.num_samples for batch in batches), "a step without a sample"
        for batch in batches:
            assert batch.weight == batch.num_samples / self.plan.batch_size
            assert len(batch.data) == max(1, batch.num_samples)
        return batches

    def step(self) -> list[Batch]:
        """A step that all commit."""
        batches = self.take()
        everyone = [feed.pending() for feed in self.feeds.values()]
        for worker, feed in self.feeds.items():
            feed.commit(everyone)
            self.steps[worker] += 1
        (self.cursor,) = {feed.after(self.cursor) for feed in self.feeds.values()}
        (_,) = {repr(feed.state_dict()) for feed in self.feeds.values()}
        for batch in batches:
            self.used.update(batch.data.tolist()[: batch.num_samples])
        return batches

    def lose_in_step(self, worker: int, *, ahead: bool) -> None:
        """A worker is lost in a step; with `ahead` after it alone has committed it, and told the master so."""
        self.take()
        if ahead:
            self.feeds[worker].commit([feed.pending() for feed in self.feeds.values()])
            self.steps[worker] += 1
            self.desk.report(worker)
        self._remove(worker)
        self.desk.ledger.lose(worker)
        self.desk.version += 1
        self._enter()

    def leave(self, worker: int) -> None:
        """A planned view without a worker; the master lets go of what it held when it next hears of the others."""
        self._remove(worker)
        self.desk.leavers.append(worker)
        self._enter()

    def join(self) -> None:
        """A planned view with a newcomer, which gets the job's state from a member."""
        holder = self.workers[0]
        worker = self._add()
        self.feeds[worker].load_state_dict(self.feeds[holder].state_dict())
        self.steps[worker] = self.steps[holder]
        self._enter()

    def finish_epoch(self) -> int:
        """Go on to the end of the epoch; returns how many steps that took."""
        epoch, steps = self.epoch, 0
        while self.epoch == epoch:
            self.step()
            steps += 1
        return steps

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.close()

    def _remove(self, worker: int) -> None:
        self.feeds.pop(worker).close()
