"""Workers that are slower than the others: first fewer virtual workers, then out.

Slow in a step: its own work took more than `factor` times the median of the others' (and, where it runs more virtual
workers than they do, that many times more again). Slow for `patience` compared steps in a row in one view: it gets a
share by its measured speed, and one less than it has at most; slow for as long once more before it was not slow for as
long, or nothing to give up: it is removed.
"""

from statistics import median

from melodeon.coord.master_state import Change, MasterState, Turn, WorkerInfo
from melodeon.coord.shares import counts_from_weights
from melodeon.coord.views import alive, unsettled
from melodeon.core.text import counted
from melodeon.core.view import View

LEAST_S = 1e-6
"""Nobody is taken for faster; who is told to have taken no time at all would be one whose speed is unknown."""


def watch_stragglers(turn: Turn) -> None:
    """Compare the steps that everybody has reported since the last look."""
    state = turn.state
    view = state.view
    if state.config.straggler_factor <= 0 or view is None or unsettled(state) or len(view.seats) < 2:
        return
    if not all(alive(state, worker) for worker in view.workers):
        return
    seats = [state.workers[worker] for worker in view.workers]
    for step in _common_steps(state, seats):
        state.judged = step
        _judge_step(state, view, seats, step)
    slow = [info for info in seats if info.slow >= state.config.straggler_patience]
    if slow and state.current is None and not state.queue and state.profile is None:
        patience = state.config.straggler_patience
        worst = max(slow, key=lambda info: (_typical(state, info, patience), info.worker))
        _act(turn, view, seats, worst)


def _common_steps(state: MasterState, seats: list[WorkerInfo]) -> range:
    first = max(info.step - len(info.busy_s) + 1 for info in seats)
    last = min(info.step for info in seats)
    return range(max(first, state.judged + 1), last + 1)


def _busy(info: WorkerInfo, step: int) -> float:
    return info.busy_s[step - info.step - 1 + len(info.busy_s)]


def _judge_step(state: MasterState, view: View, seats: list[WorkerInfo], step: int) -> None:
    counts = [seat.count for seat in view.seats]
    busy_s = [_busy(info, step) for info in seats]
    for index, info in enumerate(seats):
        others = median(busy_s[:index] + busy_s[index + 1 :])
        share = counts[index] / median(counts[:index] + counts[index + 1 :])
        slow = busy_s[index] > state.config.straggler_factor * others * max(1.0, share)
        info.slow = max(info.slow, 0) + 1 if slow else min(info.slow, 0) - 1
        info.helped = info.helped or info.slow <= -state.config.straggler_patience


def _typical(state: MasterState, info: WorkerInfo, num: int) -> float:
    """The median of its newest `num` compared steps, as far as they are known: it may have been fast before them."""
    first = max(state.judged - num, info.step - len(info.busy_s)) + 1
    times = [_busy(info, step) for step in range(first, min(state.judged, info.step) + 1)]
    return median(times or info.busy_s or (0.0,))


def _act(turn: Turn, view: View, seats: list[WorkerInfo], worst: WorkerInfo) -> None:
    state = turn.state
    counts = view.assignment.counts
    typical = [_typical(state, info, worst.slow) for info in seats]
    weights = [count / max(busy_s, LEAST_S) for count, busy_s in zip(counts, typical, strict=True)]
    index = seats.index(worst)
    fair = counts_from_weights(state.virtual_workers, weights)
    tried = worst.eased and not worst.helped
    while not tried and fair[index] >= counts[index] > 1:
        weights[index] *= 0.9  # whole numbers would leave it all that it has
        fair = counts_from_weights(state.virtual_workers, weights)
    busy_ms, others_ms = typical[index] * 1000, median(typical[:index] + typical[index + 1 :]) * 1000
    figures = (
        f"worker {worst.worker} took {busy_ms:.0f} ms a step over {worst.slow} steps, the others {others_ms:.0f} ms"
    )
    for info in seats:
        info.slow = 0
    if not tried and fair[index] < counts[index]:
        worst.eased, worst.helped = True, False
        for info, weight in zip(seats, weights, strict=True):
            info.weight = weight
        less = counted(fair[index], "virtual worker")
        reason = f"{figures}: it gets {less} instead of {counts[index]}"
        state.queue.append(Change(what="rebalance", reason=reason))
    elif len(seats) - 1 >= max(1, state.config.min_workers):
        how = "fewer virtual workers did not help" if tried else f"it has only {counts[index]}"
        reason = f"{figures}, and {how}: it is removed"
        for info in seats:
            info.weight = 0.0 if info is not worst and not info.eased else info.weight
        state.queue.append(Change(what="remove", reason=reason, workers=[worst.worker]))
    else:
        return
    turn.record("straggler", worker=worst.worker, why=reason, busy_ms=busy_ms, others_ms=others_ms)
