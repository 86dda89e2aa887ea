"""Facts into the state: what an agent reports, and what it means that one is lost. Decides nothing.

A report is taken if its (incarnation, number) is higher than the last, a status if its number is, and a phase if the
table allows the move: a doubled, late or out-of-order document changes nothing.
"""

from melodeon.coord.master_state import WORKER_MOVES, AgentInfo, JobPhase, Turn, WorkerInfo
from melodeon.coord.messages import Phase, Report, Status
from melodeon.coord.views import changes, concerned
from melodeon.core.definition import unlike
from melodeon.core.service import finite


def take_report(turn: Turn, report: Report) -> bool:
    """Take a report; False if it is not news."""
    agents = turn.state.agents
    agent = agents.get(report.agent)
    if agent is None:
        agent = agents[report.agent] = AgentInfo(agent=report.agent, host=report.host, slots=report.slots)
        turn.record("agent_joined", agent=report.agent, host=report.host, slots=report.slots)
    if (report.incarnation, report.number) <= (agent.incarnation, agent.number):
        return False
    agent.incarnation, agent.number = report.incarnation, report.number
    agent.host, agent.slots = report.host, report.slots
    agent.lost, agent.heard = False, True
    for status in report.workers:
        info = turn.state.workers.get(status.worker)
        if info is not None and info.agent == report.agent:
            take_status(turn, info, status)
    return True


def take_status(turn: Turn, info: WorkerInfo, status: Status) -> None:
    """Take a worker's word, if it is newer than its last and it has not been declared gone."""
    if info.phase is Phase.GONE:
        return
    if status.phase is Phase.GONE:
        # Its last words may have come with the news of its end.
        info.generation, info.step = max(info.generation, status.generation), max(info.step, status.step)
        info.digest = info.digest or status.digest
        info.finished = info.finished or bool(status.digest)
        info.error, info.exit_code = status.error, status.exit_code
        lose(turn, info, _how(status))
        return
    if status.number <= info.number:
        return
    info.number, info.pid = status.number, status.pid
    info.generation, info.step = max(info.generation, status.generation), status.step
    info.busy_s, info.pause_s = status.busy_s, status.pause_s
    info.address, info.checkpoint, info.keeps = status.address, status.checkpoint, status.keeps
    info.preempted, info.broken = status.preempted, status.broken
    info.error, info.exit_code, info.at = status.error, status.exit_code, status.at
    if status.total_steps is not None:
        turn.state.total_steps, turn.state.steps_per_epoch = status.total_steps, status.steps_per_epoch
    if status.metrics:
        turn.state.metrics = {name: finite(value) for name, value in status.metrics.items()}
    untold = turn.state.batch[1] == 0 and turn.state.view is not None and not turn.state.view.factor
    if status.factor and untold and status.factor != turn.state.batch[0]:
        # It came with a checkpoint: no view of this job has changed it yet.
        turn.state.batch = (status.factor, 0)
        turn.dirty = True
    if status.phase not in WORKER_MOVES[info.phase]:
        return
    if info.phase is Phase.STARTING and not _same_definition(turn, info, status):
        lose(turn, info, info.error)
        return
    info.phase = status.phase
    turn.dirty = True
    if status.phase is Phase.DONE:
        info.finished, info.digest = True, status.digest


def lose_agent(turn: Turn, agent: str) -> None:
    """Its lease has run out: whatever it or its workers say later, they are gone."""
    info = turn.state.agents.get(agent)
    if info is None or info.lost:
        return
    info.lost = True
    # One that was wanted back has offered no slots since, and its workers have left.
    if info.slots == 0 and all(w.phase is Phase.GONE for w in turn.state.workers.values() if w.agent == agent):
        turn.record("agent_left", agent=agent)
    else:
        turn.record("agent_lost", agent=agent)
    untouched = turn.state.phase is JobPhase.STARTING and not turn.state.generation
    if untouched:
        turn.calm("agents")  # it may come back, and is waited for as it was at first
    for worker in list(turn.state.workers.values()):
        if worker.agent == agent:
            lose(turn, worker, f"its agent {agent} was lost", free=untouched)


def lose(turn: Turn, info: WorkerInfo, how: str, *, free: bool = False) -> None:
    """Declare a worker gone; tear the newest view if it needs that worker. `free`: another costs no restart."""
    if info.phase is Phase.GONE:
        return
    state = turn.state
    needed = info.worker in concerned(state)
    if state.phase is JobPhase.STARTING and not info.released:
        _owe(turn, info.worker, free=free)
    info.phase = Phase.GONE
    if info.finished or info.released or state.phase is JobPhase.ENDED:
        turn.record("worker_gone", worker=info.worker, how="ended", exit_code=info.exit_code)
        return
    turn.record("worker_gone", worker=info.worker, how=how, exit_code=info.exit_code)
    if needed:
        state.torn = f"worker {info.worker} is gone: {how}"
        _owe(turn, info.worker)


def _owe(turn: Turn, worker: int, *, free: bool = False) -> None:
    """Replace it, if restarts are left and it was not about to leave anyway."""
    state = turn.state
    if any(worker in (*change.removing, *change.adding) for change in changes(state)):
        return  # the change itself counts whoever did not come to stay
    if free or state.restarts_left > 0:
        state.restarts_left -= not free
        state.owed += 1
    else:
        state.wanted = max(1, state.wanted - 1)


def _same_definition(turn: Turn, info: WorkerInfo, status: Status) -> bool:
    state = turn.state
    if not state.definition and status.virtual_workers:
        state.definition, state.virtual_workers = status.definition, status.virtual_workers
    turn.record("worker_ready", worker=info.worker)
    if (status.definition, status.virtual_workers) == (state.definition, state.virtual_workers):
        return True
    names = unlike(status.definition, state.definition) or ["virtual_workers"]
    info.error = (
        f"worker {info.worker} has another {', '.join(names)} than the workers before it: what defines the bits must "
        "be the same everywhere, so build it on every worker from the same code, files and numbers"
    )
    return False


def _how(status: Status) -> str:
    if status.error:
        return status.error
    return "it was lost" if status.exit_code is None else f"it ended with exit code {status.exit_code}"
