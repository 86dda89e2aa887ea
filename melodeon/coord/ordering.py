"""Decisions out of the state: the orders that follow from it, renumbered only where they say something new."""

from melodeon.coord.master_state import AgentInfo, JobPhase, MasterState, Told, Turn, WorkerInfo
from melodeon.coord.messages import Notice, Orders, Phase, WorkerOrder
from melodeon.core.view import View


def renumber(turn: Turn) -> list[str]:
    """Bring every worker's notice and every agent's list up to date; returns the agents whose orders changed."""
    state = turn.state
    for info in state.workers.values():
        told = _told(state, info)
        if told != info.told:
            info.told = Told(info.told.number + 1, *_content(told))
            turn.dirty = True
    changed: list[str] = []
    for agent in state.agents.values():
        listed = _listed(state, agent)
        if (listed, state.outcome) != (agent.listed, agent.ended) or agent.orders == 0:
            agent.listed, agent.ended = listed, state.outcome
            agent.orders += 1
            turn.dirty = True
            changed.append(agent.agent)
    return changed


def orders_for(state: MasterState, agent: AgentInfo) -> Orders:
    """The newest orders for an agent, whole."""
    return Orders(
        fence=state.fence,
        number=agent.orders,
        agent=agent.agent,
        incarnation=agent.incarnation,
        workers=tuple(
            WorkerOrder(worker=worker, slot=state.workers[worker].slot, notice=_notice(state, worker))
            for worker, _ in agent.listed
        ),
        end=agent.ended,
    )


def _listed(state: MasterState, agent: AgentInfo) -> tuple[tuple[int, int], ...]:
    if state.phase is JobPhase.ENDED:
        return ()
    return tuple(
        (info.worker, info.told.number)
        for info in state.workers.values()
        if info.agent == agent.agent and info.phase is not Phase.GONE
    )


def _view_of(state: MasterState, worker: int) -> View | None:
    """The newest view, if the worker has a seat in it or leaves by it."""
    view = state.view
    return view if view and (worker in view.leaving or view.rank_of(worker) is not None) else None


def _told(state: MasterState, info: WorkerInfo) -> Told:
    view = _view_of(state, info.worker)
    return Told(
        info.told.number,
        view.generation if view else 0,
        info.released and (info.told.released or state.switch is None or state.switch.let_go),
        state.phase is JobPhase.STOPPING,
        state.checkpoint,
    )


def _content(told: Told) -> tuple[int, bool, bool, int]:
    return told.generation, told.released, told.stop, told.checkpoint


def _notice(state: MasterState, worker: int) -> Notice:
    told = state.workers[worker].told
    return Notice(
        number=told.number,
        view=_view_of(state, worker),
        released=told.released,
        stop=told.stop,
        checkpoint=told.checkpoint,
    )
