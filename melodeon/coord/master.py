"""The master: one job's decisions about who trains, as a state machine without IO and without a clock.

    event --> facts into the state (intake, asks) --> rules, in order (rules) --> orders that follow (ordering)

The runner (the agent that holds the lease) hands it every event with the time, and for each `Outcome`
  1. stores `master.dump()` under its fence if `dirty`, and stops being master if the store refuses;
  2. only then sends `orders` and `answers` and writes `records`.
It calls `on_agent_lost` for each agent of `master.agents` that has no registration in the store, again and again, since
a report that was under way may bring a dead agent back into the state; and `on_tick` no later than `wake_at`.
The same state and the same events give the same outcomes, on whichever machine.
"""

import msgspec

from melodeon.coord.asks import take_ask
from melodeon.coord.intake import lose_agent, take_report
from melodeon.coord.master_state import JobConfig, MasterState, Outcome, Turn
from melodeon.coord.messages import Ask, Phase, Report
from melodeon.coord.ordering import orders_for, renumber
from melodeon.coord.rules import apply_rules

_DECODER = msgspec.json.Decoder(MasterState)


class Master:
    """A job's master; `state` is all that it is."""

    def __init__(self, state: MasterState) -> None:
        self.state = state

    @classmethod
    def begin(cls, config: JobConfig, fence: int = 0) -> "Master":
        """The first master of a job."""
        workers = sum(map(len, config.slots.values())) or config.workers
        state = MasterState(
            config=config,
            fence=fence,
            wanted=workers,
            owed=workers,
            slots=config.slots,
            restarts_left=config.restarts,
        )
        return cls(state)

    @classmethod
    def resume(cls, state: MasterState, fence: int) -> "Master":
        """A later master, from the stored state. Every agent gets its orders afresh once it reports."""
        state.fence = fence
        # Patience is counted on this machine's clock from now on.
        state.timers = {}
        for agent in state.agents.values():
            agent.heard = False
        return cls(state)

    @classmethod
    def load(cls, stored: bytes, fence: int) -> "Master":
        """`resume` from what `dump` gave."""
        return cls.resume(_DECODER.decode(stored), fence)

    def dump(self) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode(self.state)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that are not known to be lost."""
        return tuple(agent.agent for agent in self.state.agents.values() if not agent.lost)

    @property
    def outcome(self) -> str:
        """`done`, `stopped` or `failed` once the job has ended, else empty."""
        return self.state.outcome

    def on_report(self, report: Report, now: float) -> Outcome:
        """An agent says what it knows; its first report is how it joins."""
        turn = Turn(self.state, now)
        if not take_report(turn, report):
            return self._finish(turn)
        return self._finish(turn, behind=report.agent, has=(report.fence, report.orders))

    def on_agent_lost(self, agent: str, now: float) -> Outcome:
        """An agent's registration has run out."""
        turn = Turn(self.state, now)
        lose_agent(turn, agent)
        return self._finish(turn)

    def on_ask(self, ask: Ask, now: float) -> Outcome:
        """Somebody wishes something. The answer may come with a later outcome; asking again is harmless."""
        turn = Turn(self.state, now)
        take_ask(turn, ask)
        return self._finish(turn)

    def on_tick(self, now: float) -> Outcome:
        """Time has passed."""
        return self._finish(Turn(self.state, now))

    def _finish(self, turn: Turn, behind: str = "", has: tuple[int, int] = (0, 0)) -> Outcome:
        state = self.state
        apply_rules(turn)
        _forget(state)
        changed = renumber(turn)
        if behind and behind not in changed and has != (state.fence, state.agents[behind].orders):
            changed.append(behind)
        orders = {name: orders_for(state, state.agents[name]) for name in changed if state.agents[name].heard}
        return Outcome(
            orders=orders,
            answers=turn.answers,
            records=turn.records,
            # A patience that is over and still counts (agents that never came) is no reason to wake up.
            wake_at=min((at for at in state.timers.values() if at > turn.now and not state.outcome), default=None),
            dirty=turn.dirty,
        )


def _forget(state: MasterState) -> None:
    """Those who are gone need no place any more, but for those who trained to the end: they hold the result.

    A number is never given again, so a worker that is not known is one that is gone.
    """
    named = state.current.adding if state.current else []
    queued = [worker for change in state.queue for worker in change.adding]
    for worker in [w for w, info in state.workers.items() if info.phase is Phase.GONE and not info.finished]:
        if worker not in named and worker not in queued:
            del state.workers[worker]
            state.timers.pop(f"leave:{worker}", None)
