"""A master driven by hand: agents whose workers do what a test says, without a network."""

import msgspec

from melodeon.coord.master import Master
from melodeon.coord.master_state import JobConfig, MasterState, Outcome
from melodeon.coord.messages import Answer, Ask, Orders, Phase, Record, Report, Status
from melodeon.core.view import View


class Bench:
    """Every outcome goes through JSON and is obeyed at once; `now` moves when a test says so."""

    def __init__(self, agents: dict[str, int] | None = None, /, *, virtual_workers: int = 4, **config: object) -> None:
        """`agents` have so many slots each."""
        slots = agents or {"a": 4}
        self.virtual_workers = virtual_workers
        fields = {"job": "j", "agents": len(slots), **config}
        self.master = Master.begin(msgspec.convert(fields, JobConfig), fence=1)
        self.slots = slots
        self.hosts = dict.fromkeys(slots, "here")
        self.now = 0.0
        self.orders: dict[str, Orders] = {}
        self.answers: dict[str, Answer] = {}
        self.records: list[Record] = []
        self.outcome = Outcome()
        self.statuses: dict[str, dict[int, Status]] = {agent: {} for agent in slots}
        self.numbers = dict.fromkeys(slots, 0)
        self.incarnations = dict.fromkeys(slots, 1)

    @property
    def state(self) -> MasterState:
        return self.master.state

    @property
    def view(self) -> View:
        assert self.state.view is not None
        return self.state.view

    def take(self, outcome: Outcome) -> Outcome:
        dumped = self.master.dump()
        assert msgspec.json.decode(dumped, type=MasterState) == self.master.state
        self.outcome = outcome
        self.orders.update(outcome.orders)
        self.answers.update({answer.id: answer for answer in outcome.answers})
        self.records += outcome.records
        return outcome

    def report(self, agent: str, *, number: int | None = None) -> Outcome:
        if number is None:
            self.numbers[agent] += 1
            number = self.numbers[agent]
        orders = self.orders.get(agent)
        report = Report(
            agent=agent,
            incarnation=f"{self.incarnations[agent]:012d}",
            number=number,
            host=self.hosts[agent],
            slots=self.slots[agent],
            workers=tuple(self.statuses[agent].values()),
            fence=orders.fence if orders else 0,
            orders=orders.number if orders else 0,
        )
        return self.take(self.master.on_report(report, self.now))

    def report_all(self) -> None:
        for agent in self.slots:
            self.report(agent)

    def agent_of(self, worker: int) -> str:
        return next(a for a, o in self.orders.items() if any(w.worker == worker for w in o.workers))

    def set(self, worker: int, phase: Phase | None = None, **facts: object) -> None:
        """A worker's new status, not reported yet."""
        agent = next((a for a, known in self.statuses.items() if worker in known), None) or self.agent_of(worker)
        last = self.statuses[agent].get(worker) or Status(
            worker=worker, pid=1, number=0, phase=Phase.STARTING, virtual_workers=self.virtual_workers, definition="d"
        )
        changed = {"number": last.number + 1, "phase": phase or last.phase, **facts}
        self.statuses[agent][worker] = msgspec.structs.replace(last, **changed)

    def say(self, worker: int, phase: Phase | None = None, **facts: object) -> Outcome:
        self.set(worker, phase, **facts)
        return self.report(next(a for a, known in self.statuses.items() if worker in known))

    def workers(self) -> list[int]:
        """Those that are to run, by the newest orders."""
        return sorted(order.worker for orders in self.orders.values() for order in orders.workers)

    def ready(self, *workers: int) -> None:
        for worker in workers:
            self.say(worker, Phase.READY)

    def enter(self, *workers: int, step: int = 0, pause_s: float = 0.1) -> None:
        """They enter the newest view (all of its seats, if none is named)."""
        view = self.view
        for worker in workers or view.workers:
            self.set(worker, Phase.MEMBER, generation=view.generation, step=step, pause_s=pause_s)
        self.report_all()

    def gone(self, worker: int, **facts: object) -> Outcome:
        return self.say(worker, Phase.GONE, **facts)

    def ask(self, what: str, id: str = "", **values: object) -> Answer | None:  # noqa: A002 - as in Ask
        name = id or f"{what}-{len(self.answers)}"
        self.take(self.master.on_ask(Ask(id=name, what=what, values=values), self.now))
        return self.answers.get(name)

    def tick(self, later_s: float) -> Outcome:
        self.now += later_s
        return self.take(self.master.on_tick(self.now))

    def notice(self, worker: int):  # type: ignore[no-untyped-def]
        orders = self.orders[self.agent_of(worker)]
        return next(order.notice for order in orders.workers if order.worker == worker)

    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]

    def training(self, workers: int = 0) -> "Bench":
        """Up to the point where all train."""
        self.report_all()
        self.ready(*self.workers())
        self.enter()
        assert self.state.settled == self.state.view
        return self


def job(workers: int = 2, agents: dict[str, int] | None = None, /, **config: object) -> Bench:
    """A job that trains."""
    return Bench(agents, workers=workers, **config).training()  # type: ignore[arg-type]


def where(bench: Bench) -> dict[str, list[int]]:
    """The slots of those that have a seat."""
    found: dict[str, list[int]] = {}
    for worker in bench.view.workers:
        info = bench.state.workers[worker]
        found.setdefault(info.agent, []).append(info.slot)
    return {agent: sorted(slots) for agent, slots in sorted(found.items())}


def placed(slots: dict[str, list[int]], **config: object) -> Bench:
    """A job that trains on these slots."""
    return Bench({"a": 4, "b": 4}, slots=slots, **config).training()  # type: ignore[arg-type]


def walk(bench: Bench, rate: dict[int, float], count: int) -> None:
    """Train on at a rate that depends on the size."""
    for _ in range(count):
        size = len(bench.view.workers)
        bench.now += 1 / rate[size]
        for worker in bench.view.workers:
            bench.set(worker, step=bench.state.workers[worker].step + 1)
        bench.report_all()


def follow(bench: Bench) -> None:
    """Do what the newest orders say until everybody trains."""
    for worker in bench.workers():
        if all(worker not in known for known in bench.statuses.values()):
            bench.ready(worker)
    if bench.state.settled != bench.state.view:
        bench.enter(step=max(info.step for info in bench.state.workers.values()))
    for worker in [w for w in bench.workers() if bench.notice(w).released]:
        bench.gone(worker, exit_code=0)
