"""How a job ends: done, stopped or failed; and whether it has."""

from melodeon.coord.changes import cancel
from melodeon.coord.master_state import JobPhase, Turn
from melodeon.coord.messages import Phase
from melodeon.coord.profiling import drop_profile
from melodeon.coord.status import committed
from melodeon.coord.switching import tell_switch
from melodeon.coord.views import seated
from melodeon.core.text import counted


def end_job(turn: Turn, outcome: str, text: str, digest: str = "") -> None:
    """The job is over; every ask that waits is answered."""
    state = turn.state
    state.outcome, state.text, state.digest = outcome, text, digest
    cancel(turn, f"the job has ended ({outcome}): {text}")
    tell_switch(turn, at_once=True)
    drop_profile(turn, f"the job has ended ({outcome})")
    for ask in state.checkpoint_asks:
        turn.answer(ask, False, f"the job has ended ({outcome}) before the checkpoint was written", failed=True)
    state.checkpoint_asks = {}
    tell_end(turn, state.stop_ask)
    state.torn, state.owed = "", 0
    turn.move_job(JobPhase.ENDED)
    trained = {"step": max(0, committed(state))} if state.view else {}
    turn.record("end", outcome=outcome, text=text, digest=digest, **trained)


def tell_end(turn: Turn, ask: str) -> None:
    """Answer who wanted the job to end: before it did, or in the moment in which it is still found."""
    state = turn.state
    ok = state.outcome != "failed"
    turn.answer(ask, ok, state.text, failed=True, outcome=state.outcome, digest=state.digest)


def judge_errors(turn: Turn) -> None:
    """A script's own error in a worker that trains, or was to train from the start, ends the job.

    One that comes later and fails before it trains could not join: the others need nothing of it.
    """
    state = turn.state
    for info in state.workers.values():
        if info.error and not info.released and (info.generation or state.settled is None):
            if info.phase is not Phase.GONE and info.exit_code is not None:
                state.failed = (info.worker, info.exit_code)  # as it has told itself, not as its process ended
            end_job(turn, "failed", info.error)
            return


def judge_done(turn: Turn) -> None:
    """Done when somebody has trained to the end and nobody who holds state is still on the way."""
    state = turn.state
    done = [info for info in state.workers.values() if info.finished]
    if not done:
        return
    # One that was stopped a step before another has another state, and rightly so.
    steps = max(info.step for info in done)
    digests = sorted({info.digest for info in done if info.digest and info.step == steps})
    if len(digests) > 1:
        text = f"workers ended with different states ({', '.join(d[:12] for d in digests)}): report this as a bug"
        end_job(turn, "failed", text)
        return
    if not _on_the_way(turn):
        outcome = "stopped" if state.phase is JobPhase.STOPPING else "done"
        end_job(turn, outcome, f"{outcome} after {counted(steps, 'step')}", digests[0] if digests else "")
        return
    if turn.due("done", state.config.done_s) or _left_alone(turn):
        state.torn = state.torn or "others have trained to the end, the rest regroups to follow"


def _on_the_way(turn: Turn) -> list[int]:
    """Those who hold state (or are being given it) and have not finished."""
    state = turn.state
    newest = state.view.generation if state.view else 0
    begun = any(info.generation == newest for info in state.workers.values())
    rest = []
    for info in state.workers.values():
        if info.finished or info.released or info.phase is Phase.GONE:
            continue
        holds = info.phase is Phase.MEMBER or (begun and info.worker in seated(state))
        if holds:
            rest.append(info.worker)
    return rest


def _left_alone(turn: Turn) -> bool:
    """A view that is not planned waits for a seat that has finished in the one before, and will never come."""
    state = turn.state
    view = state.view
    if view is None or view.planned:
        return False
    return any(
        state.workers[seat.worker].finished and state.workers[seat.worker].generation < view.generation
        for seat in view.seats
        if seat.worker in state.workers
    )
