"""How a job begins, and begins again: nobody has state, so workers are started, and the first view waits for all."""

from melodeon.coord.changes import cancel
from melodeon.coord.ending import end_job
from melodeon.coord.master_state import JobPhase, MasterState, Stage, Turn
from melodeon.coord.messages import Phase
from melodeon.coord.profiling import drop_profile
from melodeon.coord.switching import tell_switch
from melodeon.coord.views import alive, changes, drop_worker, find_room, places, propose, room, seated, start_workers
from melodeon.core.text import counted, ending_of


def start(turn: Turn) -> None:
    """Nobody has state: start the workers that are owed; when all are ready, the first view."""
    state = turn.state
    config = state.config
    agents = sum(agent.heard and not agent.lost for agent in state.agents.values())
    if not any(agent.heard for agent in state.agents.values()):
        turn.calm("agents")  # whatever the time: a new master's own agent is about to report
        return
    waited = turn.due("agents", config.agents_s)
    if state.owed and (agents >= config.agents or waited):
        free = len(find_room(state, state.owed))
        some = free or any(alive(state, worker) for worker in state.workers)
        if free >= state.owed or (waited and some and state.generation):  # started before: fewer are better than none
            state.owed = 0 if free >= state.owed else state.owed - free
            start_workers(turn, free)
            if state.owed:
                state.restarts_left = min(config.restarts, state.restarts_left + state.owed)
                state.wanted, state.owed = state.wanted - state.owed, 0
    ready = [info for info in state.workers.values() if alive(state, info.worker)]
    if state.owed and waited and not any(info.phase is Phase.STARTING for info in ready):
        end_job(turn, "failed", _too_few(turn))
    elif not state.owed and len(ready) < max(1, config.min_workers):
        end_job(turn, "failed", _none_left(turn, len(ready)))
    elif not state.owed and all(info.phase is not Phase.STARTING for info in ready):
        _first_view(turn, [info.worker for info in ready])


def start_again(turn: Turn) -> None:
    """Nobody who held state is left: begin again from the newest checkpoint, with whoever is there."""
    state = turn.state
    why = state.torn
    state.torn = ""
    if state.phase is JobPhase.STOPPING:
        end_job(turn, "stopped", f"stopped; {why}")
        return
    least = max(1, state.config.min_workers)  # there may have been fewer, but it cannot begin with them
    size = min(max(least, state.wanted), room(state))
    for_nothing = _let_go_by_a_profile(state)
    spares = _take_newcomers(turn, size)
    missing = size - len(spares)
    for_nothing = min(for_nothing, missing)
    spent, state.owed = state.owed, min(missing, for_nothing + state.owed + state.restarts_left)
    state.restarts_left += spent - (state.owed - for_nothing)
    if not spares and not state.owed:
        end_job(turn, "failed", f"{why}, nobody else holds the job's state and no restarts are left: use --restarts")
        return
    cancel(turn, f"all workers were lost and the job starts again: {why}")
    turn.record("restart", why=why)
    tell_switch(turn, at_once=True)
    drop_profile(turn, f"all workers were lost: {why}")
    state.view = state.settled = None
    for info in state.workers.values():
        if info.phase is Phase.GONE:
            info.error = ""  # a newcomer's, that could not join: it is none of those that the job begins with
    state.wanted = len(spares) + state.owed
    turn.move_job(JobPhase.STARTING)


def _take_newcomers(turn: Turn, most: int) -> list[int]:
    """Those that changes have started, who are to begin with the job."""
    state = turn.state
    found: list[int] = []
    for change in changes(state):
        found += [worker for worker in change.adding if alive(state, worker)]
        change.adding = []
        if change.what == "replace" and change.stage is Stage.QUEUED:
            state.owed += change.count  # restarts that were spent, and have started nobody yet
    failed = [worker for worker in found if state.workers[worker].error]  # they have said so, and are about to end
    taken = [worker for worker in found if worker not in failed][:most]
    for worker in found:
        if worker not in taken:
            how = state.workers[worker].error or "there are more workers than the job is to have"
            drop_worker(turn, worker, how)
    return taken


def _let_go_by_a_profile(state: MasterState) -> int:
    """Workers that are missing for a profile's sake, and that it has not started again itself."""
    walk = state.profile
    if walk is None or not walk.back_to:
        return 0
    started = [worker for change in changes(state) if change.what == "resize" for worker in change.adding]
    there = (walk.size or len(seated(state))) + sum(alive(state, worker) for worker in started)
    return max(0, walk.back_to - there)


def _too_few(turn: Turn) -> str:
    state = turn.state
    free = len(find_room(state, state.owed))
    if state.slots:
        names = ", ".join(f"{agent}:{slot}" for agent, slot in places(state.slots))
        return f"{state.owed} workers need as many of the slots {names}, and {free} are free: name slots that exist"
    return f"{state.owed} workers need as many free slots, and the agents have {free}: start fewer or add agents"


def _none_left(turn: Turn, left: int) -> str:
    """Those that were started have ended before they trained: how the last one did says the most."""
    text = f"{counted(left, 'worker')} left to start with, and at least {turn.state.config.min_workers} needed"
    ended = [info for info in turn.state.workers.values() if info.phase is Phase.GONE and info.exit_code is not None]
    if not ended:
        return f"{text}: see the agents' logs"
    last = max(ended, key=lambda info: info.worker)
    return f"worker {last.worker} {ending_of(last.exit_code or 0)} before it trained; {text}"


def _first_view(turn: Turn, workers: list[int]) -> None:
    state = turn.state
    if len(workers) > state.virtual_workers:
        text = (
            f"{len(workers)} workers cannot share {counted(state.virtual_workers, 'virtual worker')}: "
            f"start at most {state.virtual_workers}, or raise virtual_workers"
        )
        end_job(turn, "failed", text)
        return
    turn.calm("agents")
    again = state.generation > 0
    propose(turn, workers, planned=False, reason="all who held the state were lost" if again else "the job starts")
