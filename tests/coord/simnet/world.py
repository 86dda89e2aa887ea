"""A whole job in simulated time from one seed: agents, workers, store, network, a person who asks, and faults.

Faults stop at `calm_at`; the job must end by `late_at`. A patient job does not end before every wish is answered, so
that a wish that waits for something that never comes does not hide behind the end.
"""

from random import Random
from typing import Any

import msgspec

from melodeon.coord.master_state import JobConfig
from melodeon.coord.messages import Answer, Ask, Notice, Orders, Phase
from melodeon.core.view import View
from tests.coord.simnet.agent import Agent
from tests.coord.simnet.checks import Checks
from tests.coord.simnet.clock import Clock, Node
from tests.coord.simnet.store import DECODER, Store
from tests.coord.simnet.worker import Group, Worker


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed draws: the job, and what happens to it when."""

    config: JobConfig
    virtual_workers: int
    steps: int
    step_s: float
    slots: tuple[int, ...]
    loss: float
    double: float
    late: float
    faults: tuple[tuple[float, str, float], ...]
    """(time, kind, a number to choose by)."""
    quiet: bool = False
    """Only asks, and a network that works."""
    patient: bool = False
    """It trains on until it is calm and every wish is answered, however many steps that takes."""
    silence_s: float = 2.5
    calm_at: float = 12.0
    late_at: float = 150.0


# Kind -> how often, of all that happens to jobs.
FAULTS = {
    "kill_worker": 6, "kill_agent": 2, "kill_master": 3, "kill_node": 2, "pause_worker": 3, "pause_agent": 1,
    "pause_master": 3, "cut_agent": 2, "cut_store": 2, "preempt": 2, "scale_out": 5, "scale_in": 5, "migrate": 5,
    "scale": 3, "checkpoint": 2, "stop": 0.5, "place": 5, "profile": 2,
}  # fmt: skip


ASKS = ("scale_out", "scale_in", "migrate", "scale", "checkpoint", "place", "profile")


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    virtual_workers = random.randint(2, 6)
    agents = random.randint(1, 3)
    slots = tuple(random.randint(2, 4) for _ in range(agents))
    workers = random.randint(1, min(3, virtual_workers, sum(slots)))
    # A few seeds have no faults: nothing may break by itself.
    quiet = random.random() < 0.05
    odds = {kind: often for kind, often in FAULTS.items() if not quiet or kind in ASKS}
    kinds = random.choices(list(odds), list(odds.values()), k=random.randint(1, 8))
    # Some come in a burst: one event in the middle of what another has started is where protocols break.
    burst = random.choice((1.5, 4.0, 7.0))
    begin = 0.3 + random.random() * (8.0 - burst)
    faults = [(begin + random.random() * burst, kind, random.random()) for kind in kinds]
    named = random.random() < 0.3
    config = JobConfig(
        job=f"seed-{seed}",
        workers=workers,
        slots=draw_slots(random, slots, workers) if named else {},
        agents=agents,
        restarts=random.choice((0, 2, 8, 8)),
        straggler_factor=random.choice((0.0, 0.0, 2.0)),
        straggler_patience=3,
        agents_s=4.0,
        pauses_s=5.0,
        leave_s=5.0,
    )
    return Plan(
        config=config,
        virtual_workers=virtual_workers,
        steps=random.randint(8, 20),
        step_s=random.choice((0.15, 0.3, 0.5)),
        slots=slots,
        loss=0.0 if quiet else random.choice((0.0, 0.0, 0.05, 0.2)),
        double=0.0 if quiet else random.choice((0.0, 0.05, 0.2)),
        late=0.0 if quiet else random.choice((0.0, 0.05, 0.2)),
        quiet=quiet,
        faults=tuple(sorted(faults)),
        patient=random.random() < 0.25,
    )


def draw_slots(random: Random, slots: tuple[int, ...], count: int) -> dict[str, list[int]]:
    """So many device slots of the agents, by agent."""
    everywhere = [(f"a{index}", slot) for index, some in enumerate(slots) for slot in range(some)]
    found: dict[str, list[int]] = {}
    for agent, slot in sorted(random.sample(everywhere, count)):
        found.setdefault(agent, []).append(slot)
    return found


class World:
    """Everything there is."""

    def __init__(self, seed: int, plan: Plan | None = None, *, tracing: bool = False, thorough: bool = False) -> None:
        self.plan = plan or draw_plan(seed)
        self.tracing, self.thorough = tracing, thorough
        self.lines: list[str] = []
        self.clock = Clock(seed)
        self.clock.loss, self.clock.double, self.clock.late = self.plan.loss, self.plan.double, self.plan.late
        self.checks = Checks(self)
        self.store = Store(self.clock)
        self.client, self.fate = Node("client"), Node("fate")
        self.workers: dict[int, Worker] = {}
        self.groups: dict[int, Group] = {}
        self.checkpoint = (0, self.checks.digest_at(0))
        self.asks: dict[str, Ask] = {}
        self.answers: dict[str, Answer] = {}
        self.last_step = None if self.plan.patient else self.plan.steps
        """The job's last step, once it is known."""
        self.agents = {f"a{i}": Agent(self, f"a{i}", slots) for i, slots in enumerate(self.plan.slots)}
        for index, agent in enumerate(self.agents.values()):
            self.clock.after(0.01 * index, agent, agent.boot)
        for at, kind, choice in self.plan.faults:
            self.clock.after(at, self.fate, self.happen, kind, choice)
        self.clock.after(self.plan.calm_at, self.fate, self._calm)

    def run(self) -> None:
        """Until the job has ended everywhere; raises Violation."""
        clock, late_at = self.clock, self.plan.late_at
        while not self._over():
            for _ in range(20):
                clock.step()
            self.checks.expect(clock.now < late_at, "the job ends", f"not by {clock.now:.0f} s")
        self._check_end()

    def is_last(self, step: int) -> bool:
        """Whether a worker that has committed this step has trained to the end."""
        answered = self.clock.now >= self.plan.calm_at and self.asks.keys() <= self.answers.keys()
        if self.last_step is None and answered:
            self.last_step = 1 + max(worker.step for worker in self.workers.values())
        return self.last_step is not None and step >= self.last_step

    def _over(self) -> bool:
        if self.store.state is None or self.clock.now < self.plan.faults[-1][0]:
            return False
        return all(agent.up and agent.state is not None and agent.state.end for agent in self.agents.values())

    def _check_end(self) -> None:
        assert self.store.state is not None
        state = DECODER.decode(self.store.state)
        checks = self.checks
        checks.expect(bool(state.outcome), "what was stored stays", "the job has ended, and its state says it has not")
        if state.outcome == "failed":
            holders = [w for w in self.workers.values() if w.up and w.phase is Phase.MEMBER]
            alive = [w.worker for w in holders if w.worker not in checks.declared]
            checks.expect(not alive, "a job fails only when nobody holds its state", f"{alive}: {state.text}")
            without = state.restarts_left == 0 or state.generation == 0 or "of the slots" in state.text
            checks.expect(without, "a job fails only without restarts, or without its slots", state.text)
            return
        asked = any(kind in ("stop", "preempt") for _, kind, _ in self.plan.faults)
        checks.expect(state.outcome == "done" or asked, "a job stops only when it is told to", state.text)
        surprises = [view["reason"] for view in state.history[1:] if not view["planned"]]
        checks.expect(not (self.plan.quiet and surprises), "nothing breaks by itself", str(surprises))
        ended = [info for info in state.workers.values() if info.finished and info.digest == state.digest]
        if state.outcome == "done":
            checks.expect(bool(ended) and ended[0].step == self.last_step, "all steps", f"{ended}")
        for info in ended:
            checks.expect(info.digest == str(checks.digest_at(info.step)), "one history", f"at the end: {info}")

    def _calm(self) -> None:
        """Nothing bad happens from now on."""
        clock = self.clock
        clock.loss = clock.double = clock.late = 0.0
        clock.cuts = set()

    # -- what happens --

    def happen(self, kind: str, choice: float) -> None:
        """One fault, or one thing that a person asks."""
        self.trace(f"*** {kind} {choice:.3f}")
        fault = getattr(self, f"_{kind}", None)
        if fault is not None:
            fault(choice)
        else:
            self._ask(kind, choice)

    def _pick(self, things: list[Any], choice: float) -> Any:
        return things[int(choice * len(things))] if things else None

    def _running(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.up]

    def _kill_worker(self, choice: float) -> None:
        worker = self._pick(self._running(), choice)
        if worker is not None:
            self.end_worker(worker, -9)

    def _master(self, choice: float) -> Agent:
        masters = [agent for agent in self.agents.values() if agent.term is not None]
        return masters[0] if masters else self._pick(list(self.agents.values()), choice)

    def _kill_agent(self, choice: float) -> None:
        self._restart(self._pick(list(self.agents.values()), choice), choice)

    def _kill_master(self, choice: float) -> None:
        self._restart(self._master(choice), choice)

    def _restart(self, agent: Agent, choice: float) -> None:
        if agent.up:
            agent.die()
            self.trace(f"agent {agent.name} dies")
            self.clock.after(0.2 + (choice * 997 % 1) * 3.5, self.fate, agent.boot)

    def _kill_node(self, choice: float) -> None:
        agent = self._pick(list(self.agents.values()), choice)
        self._restart(agent, choice)
        for worker in self._running():
            if worker.agent is agent:
                self.end_worker(worker, None)

    def _pause_worker(self, choice: float) -> None:
        self._pause(self._pick(self._running(), choice), choice)

    def _pause_agent(self, choice: float) -> None:
        self._pause(self._pick(list(self.agents.values()), choice), choice)

    def _pause_master(self, choice: float) -> None:
        self._pause(self._master(choice), choice)

    def _pause(self, node: Node | None, choice: float) -> None:
        if node is not None and node.up and not node.paused:
            node.paused = True
            self.clock.after(0.3 + (choice * 997 % 1) * 5.0, self.fate, self._wake, node, node.life)

    def _wake(self, node: Node, life: int) -> None:
        if node.up and node.life == life:
            self.clock.wake(node)

    def _cut_agent(self, choice: float) -> None:
        agent = self._pick(list(self.agents.values()), choice)
        self._cut([frozenset((agent.name, other)) for other in self.agents], choice)

    def _cut_store(self, choice: float) -> None:
        agent = self._pick(list(self.agents.values()), choice)
        self._cut([frozenset((agent.name, "store"))], choice)

    def _cut(self, pairs: list[frozenset[str]], choice: float) -> None:
        pairs = [pair for pair in pairs if len(pair) == 2]
        self.clock.cuts |= set(pairs)
        self.clock.after(0.3 + (choice * 997 % 1) * 4.0, self.fate, self._join, pairs)

    def _join(self, pairs: list[frozenset[str]]) -> None:
        self.clock.cuts -= set(pairs)

    def _preempt(self, choice: float) -> None:
        worker = self._pick(self._running(), choice)
        if worker is not None:
            worker.preempted = True

    def _ask(self, what: str, choice: float) -> None:
        values: dict[str, Any] = {}
        if what == "scale":
            values["n"] = 1 + int(choice * 4)
        elif what in ("scale_out", "scale_in"):
            values["n"] = 1 + int(choice * 2)
        elif what == "place":
            random = Random(int(choice * 1e9))
            most = min(self.plan.virtual_workers, sum(self.plan.slots))
            values["slots"] = draw_slots(random, self.plan.slots, random.randint(1, most))
        elif what == "profile":
            values = {"min": 1, "max": 1 + int(choice * 4), "steps": 5}
        ask = Ask(id=f"ask-{len(self.asks)}", what=what, values=values)
        self.asks[ask.id] = ask
        self._say(ask)

    def _say(self, ask: Ask) -> None:
        """Ask whoever leads, again and again until there is an answer."""
        if ask.id in self.answers:
            return
        leader = self.agents.get(self.store.leader)
        if leader is not None:
            self.clock.send("client", leader, leader.on_ask, ask)
        self.clock.after(1.0, self.client, self._say, ask)

    def on_answer(self, answer: Answer) -> None:
        """The person hears."""
        known = self.answers.setdefault(answer.id, answer)
        self.trace(f"answer {answer.id}: {answer.ok} {answer.text}")
        self.checks.expect(known == answer, "an ask has one answer", f"{known} and {answer}")

    # -- processes and groups --

    def start_worker(self, agent: Agent, number: int) -> None:
        """A worker process is made."""
        self.checks.expect(number not in self.workers, "a number is started once", f"worker {number}")
        worker = Worker(self, agent, number)
        self.workers[number] = agent.workers[number] = worker
        self.trace(f"agent {agent.name} starts worker {number}")

    def end_worker(self, worker: Worker, code: int | None) -> None:
        """A worker process ends; its agent sees it."""
        if worker.up:
            worker.die()
            self.trace(f"worker {worker.worker} ends ({code}) at step {worker.step}")
            self.clock.after(0.01, worker.agent, worker.agent.on_exit, worker.worker, code)

    def group(self, view: View) -> Group:
        """The group of a view."""
        group = self.groups.get(view.generation)
        if group is None:
            group = self.groups[view.generation] = Group(view)
        return group

    # -- for people --

    def trace(self, line: str) -> None:
        """Note what happens."""
        if self.tracing:
            self.lines.append(f"{self.clock.now:8.3f}  {line}")

    def brief(self, message: Notice | Orders) -> str:
        """A message in a few words."""
        if isinstance(message, Orders):
            return message.end or " ".join(f"{o.worker}:{self.brief(o.notice)}" for o in message.workers) or "nobody"
        view = message.view
        words = ["released" * message.released, "stop" * message.stop]
        if view is None:
            return "".join(["-", *words])
        kind = "planned" if view.planned else "unplanned"
        return "".join([f"g{view.generation}({kind}){list(view.workers)}-{list(view.leaving)}", *words])


def run_seed(seed: int, *, tracing: bool = False, thorough: bool = False) -> World:
    """Run one seed; raises Violation with what was broken."""
    world = World(seed, tracing=tracing, thorough=thorough)
    world.run()
    return world
