"""Running the master's decisions, for as long as this agent holds the lease.

Events are taken in turn, as many at a time as have come. Then the state is written to the store, fenced by the term;
only when that has succeeded does anything leave: orders, answers, lines of `events.jsonl`. A master whose term is over
is refused by the store, and so nothing of what it decided is ever seen.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.agent_events import Events
from melodeon.coord.failpoint import failpoint
from melodeon.coord.master import Master
from melodeon.coord.master_state import MasterState, Outcome
from melodeon.coord.messages import Answer, Ask, Orders, Record, Report
from melodeon.coord.store import Fence, Store, StoreError, follow

MISSING_S = 1.0


class Forgotten(StoreError):
    """The store knows nothing of the job: its launcher has ended it and cleared up."""


Reply = Callable[[Answer], None]
SendOrders = Callable[[str, Orders], None]


class MasterRunner:
    """One term of one master."""

    def __init__(
        self, config: AgentConfig, store: Store, fence: Fence, events: Events, send_orders: SendOrders
    ) -> None:
        self._config, self._store, self._fence = config, store, fence
        self._events, self._send_orders = events, send_orders
        self._queue: deque[Report | Ask | str] = deque()
        """What has come: reports, asks, and names of lost agents."""
        self._came = asyncio.Event()
        self._replies: dict[str, dict[object, Reply]] = {}
        """Wish -> who said it -> where the answer goes."""
        self._present: set[str] = set()
        """Agents with a lease."""
        self._listed = asyncio.Event()
        self._acked: dict[str, tuple[int, int]] = {}
        self._stored = 0
        """The revision of the state in the store."""
        self.farewell = asyncio.Event()
        """The job has ended, and every agent that is there has heard so."""

    def on_report(self, report: Report) -> None:
        """An agent has spoken."""
        self._put(report)

    def on_ask(self, ask: Ask, who: object, reply: Reply) -> None:
        """Somebody wishes something; `reply` is called with the answer, if that comes in this term."""
        self._replies.setdefault(ask.id, {})[who] = reply
        self._put(ask)

    async def run(self) -> None:
        """Be the master until the term is over (raises Fenced) or the task is cancelled.

        Raises Forgotten where there is nothing to be master of: one that has come to a job does not begin it anew.
        """
        failpoint("master.elected")
        master = await self._load()
        watching = [asyncio.create_task(part) for part in (self._watch_agents(), self._miss_agents(master))]
        for task in watching:
            task.add_done_callback(lambda _: self._came.set())
        try:
            outcome = master.on_tick(time.monotonic())
            values = {"agent": self._config.agent, "fence": self._fence.created}
            outcome.records.insert(0, Record(kind="master", values=values))
            outcome.dirty = True  # a term that is over already is refused here, before anybody hears of it
            wake_at = await self._settle(outcome, master)
            while True:
                for task in watching:
                    if task.done():
                        task.result()  # a master that does not hear of lost agents is none
                await self._wait(wake_at)
                failpoint("master.event")
                wake_at = await self._settle(self._take(master), master)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _load(self) -> Master:
        entry = await self._store.get(self._config.prefix + "state")
        self._stored = 0 if entry is None else entry.modified
        if entry is None and self._config.guest:
            raise Forgotten(f"the job of {self._fence.key} has ended: there is nothing to be master of")
        if entry is None:
            return Master.begin(self._config.job_config, self._fence.created)
        return Master.load(entry.value, self._fence.created)

    async def _wait(self, wake_at: float | None) -> None:
        if not self._queue:
            self._came.clear()
            timeout = None if wake_at is None else max(0.0, wake_at - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._came.wait()

    def _take(self, master: Master) -> Outcome:
        """Everything that has come, in turn; its outcomes are one."""
        now = time.monotonic()
        whole = Outcome()
        parts = []
        while self._queue:
            event = self._queue.popleft()
            if isinstance(event, Report):
                self._acked[event.agent] = (event.fence, event.orders)
                parts.append(master.on_report(event, now))
            elif isinstance(event, Ask):
                parts.append(master.on_ask(event, now))
            else:
                failpoint("master.bereft")
                parts.append(master.on_agent_lost(event, now))
        for part in parts or [master.on_tick(now)]:
            whole.orders.update(part.orders)
            whole.answers += part.answers
            whole.records += part.records
            whole.wake_at = part.wake_at
            whole.dirty = whole.dirty or part.dirty
        return whole

    async def _settle(self, outcome: Outcome, master: Master) -> float | None:
        if outcome.dirty:
            key = self._config.prefix + "state"
            self._stored = await self._store.put(key, master.dump(), expect=self._stored, fence=self._fence)
            failpoint("master.stored")
        for record in outcome.records:
            self._events.record(record)
        failpoint("master.recorded")
        # Answers first: an agent that is told of the job's end leaves, and passes nothing on any more.
        for answer in outcome.answers:
            for reply in self._replies.pop(answer.id, {}).values():
                reply(answer)
                failpoint("master.answered")
        for agent, orders in outcome.orders.items():
            self._send_orders(agent, orders)
            failpoint("master.ordered")
        self._check_farewell(master.state)
        return outcome.wake_at

    def _check_farewell(self, state: MasterState) -> None:
        if state.outcome and all(
            self._acked.get(name, (0, 0)) >= (state.fence, info.orders)
            for name, info in state.agents.items()
            if name in self._present
        ):
            self.farewell.set()

    async def _watch_agents(self) -> None:
        """Names of agents whose lease has run out."""
        prefix = self._config.prefix + "agents/"
        listing = await self._store.list(prefix)
        self._present = {key.removeprefix(prefix) for key in listing}
        self._listed.set()
        async for change in follow(self._store, prefix, known=listing):
            agent = change.key.removeprefix(prefix)
            if change.entry is not None:
                self._present.add(agent)
            else:
                self._present.discard(agent)
                self._put(agent)

    async def _miss_agents(self, master: Master) -> None:
        """Names of agents that the master counts on and that have no lease.

        Those that were lost before this term began, at once. Later only if seen twice: the news of an agent's report
        may overtake the news of its lease.
        """
        await self._listed.wait()
        missing = set(master.agents)
        while True:
            missing = missing & set(master.agents) - self._present
            for agent in missing:
                self._put(agent)
            missing = set(master.agents) - self._present
            await asyncio.sleep(MISSING_S)

    def _put(self, event: Report | Ask | str) -> None:
        self._queue.append(event)
        self._came.set()
