"""When a view has been entered by all: it counts, and the pauses are told once they are known.

Leavers have no part in it from then on. They are told so when the others have trained a step without them, since the
end of a process takes time of the processors that the others train on, and the pause would be longer by it. Until then
they hold the state, and are called back if all the others are lost.
"""

from melodeon.coord.batches import settle_factor
from melodeon.coord.master_state import Switch, Turn
from melodeon.coord.status import committed
from melodeon.coord.views import alive, entered, unsettled

HISTORY_KEPT = 20


def settle_view(turn: Turn) -> None:
    """All seats have entered the newest view: it counts from now on, and leavers are not part of the job any more."""
    state = turn.state
    view = state.view
    if view is None or state.torn or not unsettled(state):
        return
    if not all(entered(state, worker) for worker in view.workers):
        return
    tell_switch(turn, at_once=True)
    before = state.settled.workers if state.settled else ()
    state.settled = view
    settle_factor(turn, view)
    state.judged = committed(state)
    # A view that is not planned names no leavers: there may be some for whom it had no seat left.
    for worker in (*view.leaving, *before):
        if worker not in view.workers and alive(state, worker):
            state.workers[worker].released = True
    entry = {
        "generation": view.generation,
        "step": committed(state),
        "workers": list(view.workers),
        "assignment": str(view.assignment),
        "reason": view.reason,
        "planned": view.planned,
    }
    stayed = [worker for worker in view.workers if worker in before]
    state.switch = Switch(generation=view.generation, stayed=stayed, entry=entry)
    turn.dirty = True


def tell_switch(turn: Turn, at_once: bool = False) -> None:
    """Record a view when the pauses are known; answer the ask that wanted it."""
    state = turn.state
    switch = state.switch
    if switch is None:
        return
    infos = [state.workers[worker] for worker in switch.stayed if worker in state.workers]
    paused = {info.worker: info.pause_s for info in infos if info.generation == switch.generation and info.pause_s > 0}
    waiting = [info for info in infos if info.worker not in paused and alive(state, info.worker)]
    if waiting and not at_once and not turn.due("pauses", state.config.pauses_s):
        switch.let_go = turn.due("release", state.config.release_s)
        return
    turn.calm("pauses")
    turn.calm("release")
    state.switch = None
    pauses = {str(worker): pause for worker, pause in paused.items()}
    entry = {**switch.entry, "pauses": pauses}
    state.history = [*state.history, entry][-HISTORY_KEPT:]
    turn.record("view", **entry)
    turn.answer(switch.ask, True, switch.text, step=entry["step"], pauses=pauses, workers=len(entry["workers"]))
