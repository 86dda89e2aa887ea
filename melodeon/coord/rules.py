"""The master's rules, in the order in which they are looked at after every event. Each does what is due, or nothing."""

from collections.abc import Callable

from melodeon.coord.breaks import count_break, shut_out
from melodeon.coord.changes import run_changes, stand_aside
from melodeon.coord.ending import judge_done, judge_errors
from melodeon.coord.master_state import Change, JobPhase, MasterState, Turn
from melodeon.coord.messages import Phase
from melodeon.coord.pace import note_pace
from melodeon.coord.placing import settle_down
from melodeon.coord.profiling import run_profile
from melodeon.coord.starting import start, start_again
from melodeon.coord.status import committed
from melodeon.coord.stragglers import watch_stragglers
from melodeon.coord.switching import settle_view, tell_switch
from melodeon.coord.views import (
    alive,
    changes,
    concerned,
    drop_worker,
    find_room,
    places,
    propose,
    seated,
    unsettled,
)
from melodeon.core.text import counted


def notice_broken(turn: Turn) -> None:
    """A group failed and nobody is known to be gone: give the news of a death a moment, then regroup."""
    state = turn.state
    if state.view is None:
        return
    # Until a planned view is entered, the group of the one before must hold; one that is not planned replaces it.
    both = state.view.planned and unsettled(state) and state.settled is not None
    least = state.settled.generation if both and state.settled is not None else state.view.generation
    broken = [w for w in concerned(state) if alive(state, w) and state.workers[w].broken >= least]
    if not broken or state.torn:
        turn.calm("broken")
    elif turn.due("broken", state.config.broken_s):
        state.torn = f"the group of generation {least} failed at worker {broken[0]} and nobody is gone"
        if shut := shut_out(state, broken):
            state.torn = f"worker {shut[0]} could not connect with the others and nobody is gone"
        if state.torn != state.view.reason:  # told already, and no better since
            turn.record("broken", generation=state.view.generation, worker=(shut or broken)[0], text=state.torn)
        # The first view needs all of its workers: no change would give them another seat.
        begun = state.settled is not None
        if shut and begun and any(state.workers[w].phase is Phase.MEMBER for w in concerned(state) if alive(state, w)):
            closed = state.view
            _regroup(turn, newcomers=False)
            count_break(turn, closed)


def mend(turn: Turn) -> None:
    """Somebody is gone: at once a view of all who may hold state, those who were about to leave included."""
    if turn.state.torn:
        _regroup(turn, newcomers=True)


def _regroup(turn: Turn, *, newcomers: bool) -> None:
    """A view that is not planned of whoever is left; without newcomers who have no state, if there is somebody else."""
    state = turn.state
    survivors = [worker for worker in concerned(state) if alive(state, worker)]
    holders = [worker for worker in survivors if state.workers[worker].phase is Phase.MEMBER]
    if not holders:
        holders = _call_back(state)
        survivors = [*holders, *survivors]
    if not survivors:
        start_again(turn)
        return
    fresh = [worker for worker in survivors if worker not in holders]
    # Seats come first. There are more only where newcomers have the state already, and then nobody who leaves is ahead.
    holders = holders[: state.virtual_workers]
    if holders and not newcomers:
        survivors, fresh = holders, []
    free = state.virtual_workers - len(holders)
    for worker in fresh[free:]:
        drop_worker(turn, worker, "there are more workers than virtual workers")
    kept = {*holders, *fresh[:free]}
    propose(turn, [worker for worker in survivors if worker in kept], planned=False, reason=state.torn)


def _call_back(state: MasterState) -> list[int]:
    """Nobody of the view who held the state is left: those who were to leave and have not heard yet that they may hold
    it still. Newcomers without it are no reason to give it up.
    """
    held = [info for info in state.workers.values() if info.released and not info.told.released]
    held = [info for info in held if info.phase is Phase.MEMBER and not info.finished]
    held.sort(key=lambda info: (-info.generation, info.worker))  # of several views' leavers, the newest come first
    back = held[: state.virtual_workers]
    for info in back:
        info.released = False
    state.called_back = state.called_back or bool(back)
    return [info.worker for info in back]


def let_go(turn: Turn) -> None:
    """A released worker that does not end is killed: it is not listed any more."""
    for info in turn.state.workers.values():
        name = f"leave:{info.worker}"
        if not info.released or info.phase is Phase.GONE:
            turn.calm(name)
        elif turn.due(name, turn.state.config.leave_s):
            info.phase = Phase.GONE
            turn.record("worker_gone", worker=info.worker, how="released, and did not end in time", exit_code=None)


def answer_checkpoints(turn: Turn) -> None:
    """A checkpoint is written when any member says so."""
    state = turn.state
    written = max((info.checkpoint for info in state.workers.values()), default=0)
    for ask, number in list(state.checkpoint_asks.items()):
        if written >= number:
            del state.checkpoint_asks[ask]
            turn.answer(ask, True, f"checkpoint {number} is written", step=committed(state))


def give_back(turn: Turn) -> None:
    """Members whose device is wanted back leave next."""
    state = turn.state
    under_way = changes(state)
    going = {w for change in under_way if change.what == "preempt" for w in (*change.workers, *change.removing)}
    if all(state.workers[w].preempted for w in seated(state) if alive(state, w)):
        # Nobody else would stay: who is moving already goes on with that.
        going |= {w for change in under_way if change.adding for w in change.removing}
    leave = [w for w in seated(state) if alive(state, w) and state.workers[w].preempted and w not in going]
    if leave and not unsettled(state):
        stand_aside(turn)
        names = ", ".join(map(str, leave))
        reason = f"worker {names} was told to give its device back"
        state.queue.insert(0, Change(what="preempt", reason=reason, workers=leave))
        turn.dirty = True


def replace_lost(turn: Turn) -> None:
    """Replacements that are owed, as far as there are free slots."""
    state = turn.state
    if state.current is not None and state.current.what == "place":
        return  # it fills every slot that it can
    free = len(find_room(state, state.owed)) if state.owed else 0
    if free and not any(change.what == "replace" for change in state.queue):
        state.owed -= free
        reason = f"{counted(free, 'lost worker')} {'is' if free == 1 else 'are'} replaced"
        state.queue.append(Change(what="replace", reason=reason, count=free))


def send_off(turn: Turn) -> None:
    """Those who were called back go again: there may be more workers than wanted, and on slots that are not the job's.

    Once, when nothing else is under way: whatever is changes who is there as well.
    """
    state = turn.state
    if not state.called_back or unsettled(state) or state.torn or state.current or state.queue or state.profile:
        return
    if any(agent not in state.agents or state.agents[agent].lost for agent in state.slots):
        return  # they wait for it to come back
    state.called_back = False
    turn.dirty = True
    size, reason = max(state.wanted, state.config.min_workers), "workers that were called back leave again"
    here = {(state.workers[worker].agent, state.workers[worker].slot) for worker in seated(state)}
    own = set(places(state.slots))
    if own and not here <= own:
        # Once for nothing: their own slots may be promised to somebody else. Where nobody lives it is not for ever.
        cost = len(own - here) if state.sent_off else 0
        if cost > state.restarts_left:
            text = "No restarts are left to start there again: the job goes on where it is."
            turn.record("change_failed", what="place", reason=reason, text=text)
            settle_down(state)
            return
        state.restarts_left -= cost
        state.sent_off = True
        state.queue.append(Change(what="place", reason=reason, slots=state.slots))
    elif len(here) > size:
        state.queue.append(Change(what="resize", reason=reason, count=size))


Rule = Callable[[Turn], None]

# Looked at in this order while the job is in the phase; a rule may move the job to another phase.
RULES: dict[JobPhase, tuple[Rule, ...]] = {
    JobPhase.STARTING: (judge_errors, start),
    JobPhase.TRAINING: (
        judge_errors,
        settle_view,
        judge_done,
        notice_broken,
        mend,
        let_go,
        answer_checkpoints,
        give_back,
        replace_lost,
        send_off,
        watch_stragglers,
        note_pace,
        run_profile,
        run_changes,
        tell_switch,
    ),
    JobPhase.STOPPING: (
        judge_errors,
        settle_view,
        judge_done,
        notice_broken,
        mend,
        tell_switch,
        let_go,
        answer_checkpoints,
    ),
    JobPhase.ENDED: (),
}


def apply_rules(turn: Turn) -> None:
    """Look at every rule of the present phase; start over where one has moved the job."""
    while True:
        phase = turn.state.phase
        for rule in RULES[phase]:
            rule(turn)
            if turn.state.phase is not phase:
                break
        else:
            return
