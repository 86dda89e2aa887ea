"""Views that cannot be entered though nobody is gone: the change that wants one gets another, and then ends.

What stops it may pass: a death that nobody has seen yet, a network that is away for a moment. Or it stays: a newcomer
that its agent can reach and its peers cannot, a worker without room for another exchange. So the others go on without
the newcomers first, who keep their place in the change, and are not held up by a second try that is planned.
"""

from melodeon.coord.changes import do_without, finish
from melodeon.coord.master_state import Change, MasterState, Stage, Turn
from melodeon.coord.messages import Phase
from melodeon.coord.placing import stay
from melodeon.coord.views import drop_worker, seated
from melodeon.core.view import View

TRIES = 2
"""Views of one change that may break with nobody lost."""


def shut_out(state: MasterState, broken: list[int]) -> list[int]:
    """Those who have a seat in the newest view and could not enter it. If there is one, nobody has trained in it: a
    step needs all of them.
    """
    newest = state.view.generation if state.view else 0
    infos = [state.workers[worker] for worker in broken if worker in seated(state)]
    return [info.worker for info in infos if info.broken == newest > info.generation]


def count_break(turn: Turn, closed: View) -> None:
    """That view could not be entered: count it, and give up what it was for when another did not help."""
    state, change = turn.state, turn.state.current
    if change is None or change.stage is not Stage.SWITCHING:
        return
    fresh = [worker for worker in change.adding if state.workers[worker].phase is Phase.READY]
    newcomers = [worker for worker in fresh if worker in closed.workers]
    if not newcomers and not closed.planned:
        return  # it was not for this change
    change.breaks += 1
    turn.dirty = True
    if change.breaks < TRIES:
        return
    for worker in newcomers:
        how = "it and the others could not connect: see that they can reach each other"
        drop_worker(turn, worker, how)
        do_without(turn, change, worker, how)
    if not newcomers:
        _give_up(turn, change)


def _give_up(turn: Turn, change: Change) -> None:
    """It was to add nobody, or has: all who are there stay."""
    state = turn.state
    change.notes.append("Its view could not be entered, twice, though nobody was lost: see what the workers say.")
    if change.what == "place":
        stay(turn, change)
    state.wanted = max(state.wanted, len(seated(state)))
    finish(turn, change, ok=False)
