"""Hybrid scaling: with which batch factor the next view trains.

The view itself carries it, so everybody who enters a view has heard the same. It counts from when all have entered that
view: where its newcomers die on the way, the next one goes by the batch and the size of the view that was trained in.
"""

from collections.abc import Sequence

from melodeon.coord.hybrid import Decision, decide
from melodeon.coord.master_state import Turn
from melodeon.core.view import View

# What people ask for may change the batch: not a replacement of who was lost, nor the sizes that a profile walks.
GROWERS = frozenset({"scale_out", "scale", "place"})


def next_factor(turn: Turn, workers: Sequence[int], *, planned: bool) -> int:
    """The factor for a view of these workers; 0: as their state has it, since no view of this job has changed it."""
    state = turn.state
    if state.config.hybrid is None:
        return 0
    factor, since = state.batch
    told = state.view.factor if state.view is not None else 0
    decision = _decide(turn, workers, planned=planned)
    if decision.factor == factor and not since and not told:
        return 0
    if decision.factor != (told or factor):
        turn.record("batch", factor=decision.factor, generation=state.generation, why=decision.why)
    return decision.factor


def _decide(turn: Turn, workers: Sequence[int], *, planned: bool) -> Decision:
    state = turn.state
    factor, _ = state.batch
    hybrid, change, settled = state.config.hybrid, state.current, state.settled
    if hybrid is None or change is None or change.what not in GROWERS or settled is None:
        return Decision(factor, "nobody asked for more workers: the batch is kept")
    # By way of a view with one who leaves: what counts is how many there are in the end.
    size = len({*workers, *(change.adding if planned else ())} - {*change.removing})
    curves = {**hybrid.curves, **state.curves}
    return decide(curves, factor, len(settled.workers), size, hybrid.max_factor)


def settle_factor(turn: Turn, view: View) -> None:
    """All have entered the view."""
    state = turn.state
    if view.factor and view.factor != state.batch[0]:
        state.batch = (view.factor, view.generation)
        state.paces = {}  # a step is another amount of work from now on
