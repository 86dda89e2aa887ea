"""How many steps a second the job makes at each size, from what its workers report anyway.

One worker's steps and the times at which it committed them, by its own clock: two reports of it give the length of the
steps between them. The first steps of a view are left out, and so is everything while a change is under way.
"""

from melodeon.coord.master_state import Mark, MasterState, Turn
from melodeon.coord.messages import Phase
from melodeon.coord.views import unsettled

WARMUP = 3
"""Steps after a change that say nothing of the pace to come."""
KEPT = 32
"""Stretches of each size that are remembered."""
ENOUGH = 5
"""Steps that a rate stands on at least."""


def note_pace(turn: Turn) -> None:
    """Remember how long the newest steps took."""
    state = turn.state
    view = state.settled
    info = state.workers.get(view.workers[0]) if view is not None else None
    if view is None or info is None or unsettled(state) or state.torn or info.phase is not Phase.MEMBER:
        state.mark = None
        return
    mark = state.mark
    if mark is None or (mark.worker, mark.generation) != (info.worker, view.generation):
        state.mark = Mark(worker=info.worker, generation=view.generation, step=info.step + WARMUP)
    elif info.at > 0 and (info.step > mark.step or (info.step == mark.step and mark.at == 0)):
        if 0 < mark.at < info.at:
            known = state.paces.setdefault(len(view.workers), [])
            known.append((info.step - mark.step, info.at - mark.at))
            del known[:-KEPT]
        mark.step, mark.at = info.step, info.at


def rates(state: MasterState) -> dict[int, float]:
    """Steps a second by number of workers: the median over steps."""
    found = {}
    for size, known in sorted(state.paces.items()):
        total = sum(steps for steps, _ in known)
        if total < ENOUGH:
            continue
        before = 0
        for seconds, steps in sorted((seconds / steps, steps) for steps, seconds in known):
            before += steps
            if 2 * before >= total:
                found[size] = 1 / seconds
                break
    return found
