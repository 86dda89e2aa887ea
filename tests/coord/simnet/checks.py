"""What must hold, checked where it happens. A violation names itself."""

from typing import TYPE_CHECKING

from melodeon.coord.agent_state import AgentState
from melodeon.coord.master_state import MasterState, Outcome
from melodeon.coord.messages import Orders, Phase
from melodeon.core.view import View
from tests.coord.simnet.store import DECODER

if TYPE_CHECKING:
    from tests.coord.simnet.agent import Agent
    from tests.coord.simnet.worker import Group, Worker
    from tests.coord.simnet.world import World


class Violation(AssertionError):
    """A promise was broken."""


class Checks:
    """The promises of the protocol, and what has been seen so far."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.views: dict[int, View] = {}
        self.newest = 0
        self.declared: set[int] = set()
        """Workers that a stored state has declared gone or let go."""
        self.issued: set[tuple[int, str, int]] = set()
        """(fence, agent, number) of orders whose state was stored."""
        self.fences: dict[str, int] = {}
        self.asked: set[str] = set()
        self.placed: set[str] = set()
        """Wishes for slots that were fulfilled."""
        self.history = [hash((0, step)) for step in range(1)]
        self.commits = 0

    def fail(self, promise: str, detail: str) -> None:
        """Say what was broken."""
        raise Violation(f"{promise}: {detail}")

    def expect(self, good: bool, promise: str, detail: str = "") -> None:
        """Fail unless it holds."""
        if not good:
            self.fail(promise, detail)

    def digest_at(self, step: int) -> int:
        """The one history."""
        while len(self.history) <= step:
            self.history.append(hash((self.history[-1], len(self.history))))
        return self.history[step]

    def view_told(self, view: View) -> None:
        """A worker was told of a view."""
        known = self.views.get(view.generation)
        if known is not view:
            self.expect(known == view, "one view for each generation, stored first", f"{known} and {view}")

    def _view_stored(self, view: View) -> None:
        known = self.views.get(view.generation)
        if known is None:
            self.views[view.generation] = view
            self.newest = max(self.newest, view.generation)
            back = [seat.worker for seat in view.seats if seat.worker in self.declared]
            self.expect(not back, "a worker declared gone has no effect later", f"{back} in {view.generation}")
        elif known is not view:
            self.expect(known == view, "one view for each generation, stored first", f"{known} and {view}")

    def commit(
        self, worker: "Worker", group: "Group", step: int, shared: dict[int, tuple[int, int, bool, range]]
    ) -> int:
        """A worker commits a step: the digest depends on all that went in, and must be the history's."""
        ranks = sorted(rank for _, _, _, run in shared.values() for rank in run)
        states = {digest for _, digest, _, _ in shared.values()}
        whole = ranks == list(range(self.world.plan.virtual_workers)) and states == {self.digest_at(step - 1)}
        self.expect(whole, "one history", f"worker {worker.worker} step {step} from {ranks}, {len(states)} states")
        self.expect(worker.step == step - 1, "one history", f"worker {worker.worker} commits {step} at {worker.step}")
        self.commits += 1
        return self.digest_at(step)

    def begins(self, group: "Group") -> None:
        """A group starts from its furthest state: nobody who lives and counts may be further."""
        if group.view.generation != self.newest:
            return
        start = max(step for step, _ in group.gathered.values())
        for worker in self.world.workers.values():
            counts = worker.up and worker.worker not in self.declared and worker.phase is Phase.MEMBER
            if counts and worker.step > start and not worker.member.released:
                self.fail("no committed step is lost", f"worker {worker.worker} has {worker.step}, view has {start}")

    def released(self, worker: "Worker") -> None:
        """A leaver ends: all must have entered a view that has no seat for it, the one that it knows or a later one."""
        known = worker.member.view
        assert known is not None
        without = [self.views[number] for number in range(known.generation, self.newest + 1) if number in self.views]
        without = [view for view in without if view.rank_of(worker.worker) is None]
        entered = any(all(self._has_entered(seat.worker, view) for seat in view.seats) for view in without)
        self.expect(entered, "released when all have entered", f"worker {worker.worker} of {known}")
        self.expect(known.rank_of(worker.worker) is None, "only leavers are released", f"worker {worker.worker} trains")

    def _has_entered(self, worker: int, view: View) -> bool:
        other = self.world.workers[worker]
        return other.member.entered >= view.generation or not other.up

    def stored(self, outcome: Outcome, state: MasterState) -> None:
        """A master's state was written: what follows from it may be seen."""
        for record in outcome.records:
            if record.kind == "ask":
                self.expect(record.values["id"] not in self.asked, "an ask has one effect", record.values["id"])
                self.asked.add(record.values["id"])
            if record.kind == "restart":
                members = [worker for worker, info in state.workers.items() if info.phase is Phase.MEMBER]
                held = [worker for worker in members if worker not in self.declared]
                self.expect(not held, "a checkpoint is read when nobody holds the state", str(held))
            if self.world.tracing:
                self.world.trace(f"master: {record.kind} {record.values}")
        self.loaded(state)
        for answer in outcome.answers:
            if answer.ok:
                self._placed(answer.id, state)

    def _placed(self, name: str, state: MasterState) -> None:
        """A wish for slots counts as fulfilled when workers are there and nowhere else; losses may follow."""
        ask = self.world.asks.get(name)
        if ask is None or ask.what != "place" or name in self.placed:
            return
        self.placed.add(name)
        if state.profile is not None and state.profile.back_to:
            return  # they are, as far as it takes them
        seats = [state.workers[worker] for worker in state.settled.workers] if state.settled else []
        wished = sorted((agent, slot) for agent, slots in ask.values["slots"].items() for slot in slots)
        there = sorted((info.agent, info.slot) for info in seats)
        self.expect(there == wished, "placed on exactly the slots that were named", f"{there}, not {wished}")

    def loaded(self, state: MasterState) -> None:
        """A stored state counts: its view, who is gone by it, and its orders under the term of whoever holds it."""
        if state.view is not None:
            self._view_stored(state.view)
        if state.switch is not None:
            self._placed(state.switch.ask, state)
        taken = [(info.agent, info.slot) for info in state.workers.values() if info.phase is not Phase.GONE]
        self.expect(len(set(taken)) == len(taken), "a slot has one worker", str(sorted(taken)))
        for number in range(state.next_worker):
            info = state.workers.get(number)
            if info is None or info.phase is Phase.GONE or info.told.released:
                self.declared.add(number)
        for agent in state.agents.values():
            self.issued.add((state.fence, agent.agent, agent.orders))

    def applied(self, agent: "Agent", orders: Orders, state: AgentState) -> None:
        """An agent acts on orders."""
        what = f"agent {agent.name}, orders {orders.fence}.{orders.number}"
        self.expect(orders.fence >= self.fences.get(agent.name, 0), "older terms are refused", what)
        self.fences[agent.name] = orders.fence
        self.expect((orders.fence, agent.name, orders.number) in self.issued, "stored before it is sent", what)
        self.expect(orders.incarnation == state.incarnation, "orders are for this incarnation", what)

    def round_trip(self, stored: bytes, state: MasterState) -> None:
        """JSON gives back an equal state."""
        self.expect(DECODER.decode(stored) == state, "the state survives JSON")
