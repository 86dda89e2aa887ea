"""An agent: the real AgentState, and the real Master while it holds the lease, around the simulated network."""

from collections import deque
from typing import TYPE_CHECKING

from melodeon.coord.agent_state import AgentState, Todo
from melodeon.coord.master import Master
from melodeon.coord.master_state import Outcome
from melodeon.coord.messages import Ask, Notice, Orders, Report, Status
from tests.coord.simnet.clock import Node
from tests.coord.simnet.store import Beat
from tests.coord.simnet.worker import Worker

if TYPE_CHECKING:
    from tests.coord.simnet.world import World

TICK_S = 0.5
PUT_AGAIN_S = 0.7


class Term:
    """One agent's time as master: events in turn, the state stored before anything leaves."""

    def __init__(self, agent: "Agent", master: Master) -> None:
        self.agent, self.master, self.fence = agent, master, master.state.fence
        self.events: deque[Report | Ask | str | None] = deque()
        self.storing: tuple[bytes, Outcome] | None = None
        self.written = agent.world.store.written
        """The revision of the state that was loaded or stored last."""
        self.over = False

    def take(self, event: Report | Ask | str | None) -> None:
        """A report, an ask, the name of a lost agent, or None: time has passed."""
        self.events.append(event)
        self._work()

    def _work(self) -> None:
        world, master = self.agent.world, self.master
        while self.events and self.storing is None and not self.over:
            event, now = self.events.popleft(), world.clock.now
            if isinstance(event, Report):
                outcome = master.on_report(event, now)
            elif isinstance(event, Ask):
                outcome = master.on_ask(event, now)
            elif event is None:
                outcome = master.on_tick(now)
            else:
                outcome = master.on_agent_lost(event, now)
            stored = master.dump() if outcome.dirty or world.thorough else b""
            if stored:
                world.checks.round_trip(stored, master.state)
            if outcome.dirty:
                self.store(stored, outcome)
            else:
                self.release(outcome)

    def store(self, stored: bytes, outcome: Outcome) -> None:
        """Write the state under this term's fence; `release` what follows from it when that is done."""
        self.storing = (stored, outcome)
        self._put(stored)

    def _put(self, stored: bytes) -> None:
        if self.storing is None or self.storing[0] is not stored or self.over:
            return
        agent = self.agent
        agent.world.store.put(agent, self.fence, self.written, stored, lambda revision: self._stored(stored, revision))
        agent.world.clock.after(PUT_AGAIN_S, agent, self._put, stored)

    def _stored(self, stored: bytes, revision: int) -> None:
        if self.storing is None or self.storing[0] is not stored or self.over:
            return
        if revision < 0:
            self.agent.step_down(self)
            return
        _, outcome = self.storing
        self.storing, self.written = None, revision
        self.agent.world.checks.stored(outcome, self.master.state)
        self.release(outcome)
        self._work()

    def release(self, outcome: Outcome) -> None:
        """Send what the outcome asks for."""
        world = self.agent.world
        for name, orders in outcome.orders.items():
            agent = world.agents[name]
            world.clock.send(self.agent.name, agent, agent.on_orders, orders)
        for answer in outcome.answers:
            world.clock.send(self.agent.name, world.client, world.on_answer, answer)


class Agent(Node):
    """One node's agent."""

    def __init__(self, world: "World", name: str, slots: int) -> None:
        super().__init__(name)
        self.world, self.slots = world, slots
        self.host = name
        self.state: AgentState | None = None
        self.term: Term | None = None
        self.leader, self.fence = "", 0
        self.workers: dict[int, Worker] = {}
        """Every process it ever started: what its marks on the disk say."""
        self.reporting = False

    def boot(self) -> None:
        """The process starts."""
        self.up, self.paused, self.backlog = True, False, []
        self.state, self.term, self.leader, self.fence = None, None, "", 0
        self.reporting = False
        self._tick()

    def die(self) -> None:
        """The process is no more; its workers go on."""
        self.up = False
        self.life += 1

    def _tick(self) -> None:
        world = self.world
        world.store.beat(self, self.term.fence if self.term else 0, self._on_beat)
        if self.state is not None:
            self._do(self.state.on_tick(world.clock.now))
            self._report()
        if self.term is not None:
            self.term.take(None)
        world.clock.after(TICK_S, self, self._tick)

    def _on_beat(self, beat: Beat) -> None:
        world = self.world
        if beat.fence < self.fence:
            return
        self.leader, self.fence = beat.leader, beat.fence
        if self.state is None:
            # Marked workers that have ended are told as gone, those that run will speak.
            adopted = {number: worker.up for number, worker in self.workers.items()}
            self.state = AgentState(
                agent=self.name,
                host=self.host,
                slots=self.slots,
                incarnation=world.store.next_revision(),
                now=world.clock.now,
                fence=beat.fence,
                adopted=adopted,
                last_words={n: w.last_words for n, w in self.workers.items() if w.last_words is not None},
                silence_s=world.plan.silence_s,
                start_s=2 * world.plan.silence_s,
            )
            self._report()
        if self.term is not None and self.term.fence != beat.fence:
            self.step_down(self.term)
        if beat.leader == self.name and self.term is None:
            self._take_over(beat.fence)
        if self.term is not None:
            for name in self.term.master.agents:
                if name not in beat.present:
                    self.term.take(name)

    def _take_over(self, fence: int) -> None:
        world = self.world
        stored = world.store.state
        master = Master.begin(world.plan.config, fence) if stored is None else Master.load(stored, fence)
        world.checks.loaded(master.state)
        self.term = Term(self, master)
        world.trace(f"agent {self.name} is master, term {fence}")
        self.term.take(None)

    def step_down(self, term: Term) -> None:
        """The term is over."""
        self.world.trace(f"agent {self.name} steps down from term {term.fence}")
        term.over = True
        self.term = None

    def on_report(self, report: Report) -> None:
        """For the master, if this agent is it."""
        if self.term is not None:
            self.term.take(report)

    def on_ask(self, ask: Ask) -> None:
        """For the master, if this agent is it."""
        if self.term is not None:
            self.term.take(ask)

    def on_orders(self, orders: Orders) -> None:
        """Orders over the network."""
        if self.state is None:
            return
        before = (self.state.fence, self.state.number)
        todo = self.state.on_orders(orders, self.world.clock.now)
        if (self.state.fence, self.state.number) != before or todo.start or todo.kill:
            self.world.checks.applied(self, orders, self.state)
        if self.world.tracing and todo.report:
            self.world.trace(
                f"agent {self.name} takes orders {orders.fence}.{orders.number}: {self.world.brief(orders)}"
            )
        self._do(todo)

    def on_status(self, worker: Worker, status: Status) -> None:
        """A worker's word over the local socket."""
        if self.state is not None:
            self._do(self.state.on_status(status, self.world.clock.now))

    def on_exit(self, worker: int, code: int | None) -> None:
        """A process of this node has ended."""
        if self.state is not None:
            self._do(self.state.on_worker_exit(worker, code))

    def _do(self, todo: Todo) -> None:
        world = self.world
        for order in todo.start:
            world.start_worker(self, order.worker)
        for number in todo.kill:
            worker = self.workers.get(number)
            if worker is not None and worker.up:
                world.trace(f"agent {self.name} kills worker {number}")
                world.end_worker(worker, None)
        for number, notice in todo.notices.items():
            self._tell(number, notice)
        if todo.report:
            self._report_soon()

    def _tell(self, number: int, notice: Notice) -> None:
        worker = self.workers.get(number)
        if worker is not None and worker.up:
            self.world.clock.after(0.001, worker, worker.on_notice, notice)

    def _report_soon(self) -> None:
        if not self.reporting:
            self.reporting = True
            self.world.clock.after(0.02, self, self._report_now)

    def _report_now(self) -> None:
        self.reporting = False
        self._report()

    def _report(self) -> None:
        if self.state is not None and self.leader:
            leader = self.world.agents[self.leader]
            report = self.state.report()
            if leader is self:
                self.on_report(report)
            else:
                self.world.clock.send(self.name, leader, leader.on_report, report)
