"""Changes of membership, one at a time: start what is to be added, switch once, release what is to be removed.

A change is looked at again after every event while it is the current one, and does what is still missing. A loss in the
middle therefore needs no special case: when the survivors have regrouped, the rest of the change goes on.
"""

from collections.abc import Callable

from melodeon.coord.master_state import Change, JobPhase, MasterState, Stage, Turn, WorkerInfo
from melodeon.coord.messages import Phase
from melodeon.coord.placing import begin_place, is_placed, lose_newcomer, pursue_place, stay
from melodeon.coord.profiling import drop_profile
from melodeon.coord.views import (
    alive,
    counts_for,
    drop_worker,
    find_room,
    places,
    propose,
    removed,
    room,
    seated,
    start_workers,
    unsettled,
)
from melodeon.core.text import counted


def run_changes(turn: Turn) -> None:
    """Move the current change along, and begin the next ones until one has to wait."""
    state = turn.state
    while not unsettled(state):
        if state.current is None:
            if not state.queue:
                return
            if state.phase is not JobPhase.TRAINING or _awaits_slots(turn, state.queue[0]):
                return
            _begin(turn, state.queue.pop(0))
        elif not _advance(turn, state.current):
            return


def _awaits_slots(turn: Turn, change: Change) -> bool:
    """Whether it needs slots that there may be soon: the leavers of a view before end within seconds, and so do agents
    speak that this master has not heard yet.
    """
    state = turn.state
    count = _needed(state, change)
    if change.stage is not Stage.QUEUED or len(find_room(state, count, change.on)) >= count:
        return False
    if count <= len(find_room(state, count, change.on, soon=True)):
        return True
    unheard = [name for name, agent in state.agents.items() if not agent.lost and not agent.heard]
    return any(change.on in ("", name) for name in unheard) and not turn.due("unheard", state.config.agents_s)


def _needed(state: MasterState, change: Change) -> int:
    """How many slots it needs to begin; 0 where it will be refused for another reason."""
    now = seated(state)
    sizes = {"scale_out": len(now) + change.count, "scale": change.count, "resize": change.count}
    if change.what in sizes:
        return sizes[change.what] - len(now) if sizes[change.what] <= room(state) else 0
    moves = change.what == "migrate" or (change.what == "preempt" and set(now) <= set(change.workers))
    return len([worker for worker in change.workers if worker in now]) if moves else 0


def _begin(turn: Turn, change: Change) -> None:
    state = turn.state
    state.current = change
    if change.stage is not Stage.QUEUED:
        # It had begun, and stood aside for somebody who had to leave at once.
        return
    turn.move_change(change, Stage.STARTING)
    refusal = BEGIN[change.what](turn, change)
    if refusal and state.current is not None:
        change.notes.append(refusal)
        _drop_newcomers(turn, change)
        finish(turn, change, ok=False, refused=True)
    elif not refusal and change.what in SIZERS and state.profile is not None and state.profile.back_to:
        _interrupt_profile(turn, change)


def _interrupt_profile(turn: Turn, change: Change) -> None:
    """The change says how large the job is: a walk over sizes ends, and does not go back from here."""
    state = turn.state
    for walk in [queued for queued in state.queue if queued.what == "resize"]:
        state.queue.remove(walk)
        _drop_newcomers(turn, walk)
        turn.move_change(walk, Stage.OVER)
    if change.what != "scale":
        # The others count from the size that the walk had come to, and from those that are being replaced.
        due = state.owed + sum(queued.count for queued in state.queue if queued.what == "replace")
        state.wanted = max(1, len(seated(state)) + len(change.adding) - len(change.removing) + due)
    drop_profile(turn, change.reason)


def _advance(turn: Turn, change: Change) -> bool:
    """Do what is missing; False while there is something to wait for."""
    state = turn.state
    if change.stage is Stage.SWITCHING:
        turn.move_change(change, Stage.STARTING)
    _forget_lost(turn, change)
    waits = change.what == "place" and pursue_place(turn, change)
    if waits or any(state.workers[worker].phase is Phase.STARTING for worker in change.adding):
        return False
    target = _target(state, change)
    if not target:
        # All of the view have trained to the end, or are about to be replaced by a view that is not planned.
        return False
    if not change.adding and change.what in ADDERS and (not change.views or change.what == "migrate"):
        # Nothing is left of what was to be added, so nothing that depended on it happens either.
        finish(turn, change, ok=False)
        return True
    if change.what == "place" and not change.adding and set(change.removing) >= set(seated(state)):
        stay(turn, change)
        finish(turn, change, ok=False)
        return True
    same = set(target) == set(seated(state))
    if same and (change.what != "rebalance" or change.views or counts_for(state, target) == _counts(state)):
        finish(turn, change, ok=_is_fulfilled(state, change))
        return True
    propose(turn, target, planned=True, reason=change.reason)
    change.views += 1
    turn.move_change(change, Stage.SWITCHING)
    return False


def _target(state: MasterState, change: Change) -> list[int]:
    """The members of the next view: one that keeps nobody of the present one would have nowhere to copy from, so a
    change of everybody goes by way of a view with one of the old ones.
    """
    now = [worker for worker in seated(state) if alive(state, worker)]
    stay = [worker for worker in now if worker not in change.removing]
    fresh = [worker for worker in change.adding if worker not in now and alive(state, worker)]
    if not stay and now:
        return [now[0], *fresh[: max(0, state.virtual_workers - 1)]]
    return [*stay, *fresh][: state.virtual_workers]


def _is_fulfilled(state: MasterState, change: Change) -> bool:
    """What was asked for has come about; a loss among those who were there before is another matter."""
    if change.what == "place":
        return is_placed(state, change)
    return change.what not in ("scale_out", "scale") or not change.notes


def finish(turn: Turn, change: Change, *, ok: bool, refused: bool = False) -> None:
    """The change is over; its ask is answered now, or with the pauses of the view that it ended with."""
    state = turn.state
    turn.move_change(change, Stage.OVER)
    state.current = None
    notes = " ".join(change.notes)
    size = len(seated(state))
    if not ok:
        if notes and change.views:
            notes += f" The job has {counted(size, 'worker')}."
        turn.record("change_failed", what=change.what, reason=change.reason, text=notes)
        turn.answer(change.ask, False, notes or f"{change.what} could not be done", failed=not refused)
        return
    text = f"{change.reason}: the job has {counted(size, 'worker')}." + (f" {notes}" if notes else "")
    if state.switch is not None and change.ask and change.views:
        state.switch.ask, state.switch.text = change.ask, text
    else:
        turn.answer(change.ask, True, text, workers=size, generation=state.generation)


def cancel(turn: Turn, why: str) -> None:
    """Give up every change; newcomers without a seat are let go."""
    state = turn.state
    changes = ([state.current] if state.current else []) + state.queue
    state.queue, state.current = [], None
    for change in changes:
        change.notes.append(why)
        _drop_newcomers(turn, change)
        turn.move_change(change, Stage.OVER)
        turn.answer(change.ask, False, why, failed=True)


def stand_aside(turn: Turn) -> None:
    """Let something urgent run first: the current change goes back to the queue, if it only waits for newcomers."""
    state = turn.state
    if state.current is not None and not unsettled(state) and state.current.what != "preempt":
        state.queue.insert(0, state.current)
        state.current = None


def supersede(turn: Turn, newer: Change) -> None:
    """Of wishes about slots only the newest counts: older ones end, and what they have started is taken over."""
    state = turn.state
    older = [change for change in state.queue if change.what == "place"]
    if state.current is not None and state.current.what == "place" and not state.current.views:
        older.append(state.current)
        state.current = None
    state.queue = [change for change in state.queue if change not in older]
    wished = places(newer.slots)
    for change in older:
        infos = [state.workers[worker] for worker in change.adding if alive(state, worker)]
        newer.adding += [info.worker for info in infos if (info.agent, info.slot) in wished]
        change.adding = [worker for worker in change.adding if worker not in newer.adding]
        _drop_newcomers(turn, change)
        turn.move_change(change, Stage.OVER)
        turn.answer(change.ask, False, "a newer wish about the job's slots has taken its place", failed=True)


def _drop_newcomers(turn: Turn, change: Change) -> None:
    from_view = seated(turn.state)
    for worker in change.adding:
        info = turn.state.workers.get(worker)
        if info is not None and worker not in from_view and info.phase is not Phase.GONE:
            drop_worker(turn, worker, "it is not needed any more")


def _forget_lost(turn: Turn, change: Change) -> None:
    change.removing = [worker for worker in change.removing if alive(turn.state, worker)]
    for worker in list(change.adding):
        info = turn.state.workers.get(worker)
        if info is not None and info.released:  # it has been in a view, and what let it go from there has counted it
            change.adding.remove(worker)
            change.notes.append(f"New worker {worker} had to give its device back.")
        elif info is None or info.phase is Phase.GONE:
            do_without(turn, change, worker, _how_lost(turn.state, info))


def _how_lost(state: MasterState, info: WorkerInfo | None) -> str:
    if info is None or not info.error:
        return "it was lost before it had a seat"
    code = f"exit code {info.exit_code}"
    where = f", and `melodeon logs {state.config.job} --worker {info.worker}` shows why"
    return f"{info.error}{where if info.error.endswith(code) else ''}"


def do_without(turn: Turn, change: Change, worker: int, how: str) -> None:
    """A newcomer of the change will not come."""
    state = turn.state
    change.adding.remove(worker)
    change.notes.append(f"New worker {worker} could not join: {how}.")
    if change.what == "migrate" and len(change.removing) > len(change.adding):
        change.removing = change.removing[: len(change.adding)]  # who has no successor stays
    elif change.what in ("replace", "place", "migrate", "preempt"):
        lose_newcomer(turn)  # of one that moved, the predecessor is gone or has to leave
    elif change.what in ("scale_out", "scale"):
        state.wanted = max(1, state.wanted - 1)


def _counts(state: MasterState) -> tuple[int, ...]:
    return state.view.assignment.counts if state.view else ()


def _begin_out(turn: Turn, change: Change) -> str:
    state = turn.state
    size, most = len(seated(state)), room(state)
    if change.what == "replace":
        wanted = max(state.wanted, state.profile.size if state.profile else 0)  # a size that is being measured counts
        needed = max(0, min(change.count, most - size, wanted - size))
        state.restarts_left += change.count - needed  # what was spent on the others is there for a later loss
        change.count = needed
        if change.count < 1:
            return "no replacement is needed any more"
    if change.count < 1 or size + change.count > most:
        more = most - size
        fix = "it has them all" if more < 1 else f"ask for {'1' if more == 1 else f'1 to {more}'} more"
        return (
            f"{size} + {change.count} workers cannot be: the job may have at most {most} "
            f"({counted(state.virtual_workers, 'virtual worker')}, at least one each); {fix}"
        )
    if change.on and change.on not in state.agents:
        return f"there is no agent {change.on!r}: choose one of {', '.join(sorted(state.agents)) or 'none'}"
    free = len(find_room(state, change.count, change.on))
    if free < change.count:
        if change.what == "replace":
            state.owed += change.count
        where = f"agent {change.on} has" if change.on else "the agents have"
        fix = _more_room(state, change, change.count, placed="place the job on more slots first")
        return f"{counted(change.count, 'new worker')} cannot start: {where} {counted(free, 'free slot')}; {fix}"
    change.adding = start_workers(turn, change.count, change.on)
    if change.what == "scale_out":
        state.wanted += change.count
    return ""


def _begin_in(turn: Turn, change: Change) -> str:
    state = turn.state
    now = list(seated(state))
    unknown = [worker for worker in change.workers if worker not in now]
    if unknown and change.what == "scale_in":
        return f"worker {unknown[0]} is not in the job: choose of {', '.join(map(str, now))}"
    named = [worker for worker in change.workers if worker in now]
    leave = named or (now[len(now) - change.count :] if 0 < change.count <= len(now) else [])
    least = max(1, state.config.min_workers)
    if change.what == "scale_in" and (not leave or len(now) - len(leave) < least):
        return (
            f"{change.count or len(leave)} of {len(now)} workers cannot leave: at least {least} must stay, "
            f"so ask for 1 to {len(now) - least}"
            if len(now) > least
            else f"the job has {counted(len(now), 'worker')} and needs at least {least}: nobody can leave; "
            "stop the job instead"
        )
    if len(now) - len(leave) < 1:
        return "the last worker cannot be removed"
    change.removing = leave
    if change.what in ("scale_in", "remove", "preempt"):
        state.wanted = max(1, state.wanted - len({*leave} - removed(state, change)))
    return ""


def _begin_scale(turn: Turn, change: Change) -> str:
    state = turn.state
    size, most, least = len(seated(state)), room(state), max(1, state.config.min_workers)
    wish = change.count
    if not least <= wish <= most:
        virtual = counted(state.virtual_workers, "virtual worker")
        return f"{counted(wish, 'worker')} cannot be: choose {least} to {most} for {virtual}"
    change.count = abs(wish - size)
    step = _begin_out if wish > size else _begin_in
    refusal = step(turn, change) if wish != size else ""
    if not refusal and change.what == "scale":
        state.wanted = wish
        # Replacements that are owed are among those that this starts, or are not wanted any more.
        state.restarts_left += state.owed
        state.owed = 0
    return refusal


def _begin_migrate(turn: Turn, change: Change) -> str:
    state = turn.state
    now = seated(state)
    leave = [worker for worker in change.workers if worker in now]
    if not leave:
        return f"worker {change.workers[0]} is not in the job: choose of {', '.join(map(str, now))}"
    if state.virtual_workers == 1:
        return "a job with virtual_workers=1 cannot move: its state is copied inside a view of two; raise it to 2"
    if change.on and change.on not in state.agents:
        return f"there is no agent {change.on!r}: choose one of {', '.join(sorted(state.agents))}"
    elsewhere = change.on or _elsewhere(state, leave)
    if len(find_room(state, len(leave), elsewhere)) < len(leave):
        where = f"agent {change.on} has" if change.on else "there are"
        fix = _more_room(state, change, len(leave), placed="place the job on other slots instead")
        return f"{counted(len(leave), 'worker')} cannot move: {where} fewer free slots; {fix}"
    change.adding = start_workers(turn, len(leave), elsewhere)
    change.removing = leave
    return ""


def _more_room(state: MasterState, change: Change, count: int, *, placed: str) -> str:
    """What a person can do where so many new workers find no slots; `placed` where the job's slots are named."""
    if change.on and len(find_room(state, count)) >= count:
        return "name another agent, or none"
    return placed if state.slots else "add an agent"


def _elsewhere(state: MasterState, leave: list[int]) -> str:
    """Another agent than theirs, where one has room for them all; else any."""
    homes = {state.workers[worker].agent for worker in leave}
    others = [name for name in sorted(state.agents) if name not in homes]
    return next((name for name in others if len(find_room(state, len(leave), name)) >= len(leave)), "")


def _begin_preempt(turn: Turn, change: Change) -> str:
    """The device must be given back: leave, or move if nobody else would stay."""
    state = turn.state
    now = seated(state)
    if not any(worker in now for worker in change.workers):
        return "the worker has left already"
    if any(worker not in change.workers for worker in now):
        return _begin_in(turn, change)
    free = len(find_room(state, len(now)))
    if 0 < free < len(now):
        # Not all of them can move, but one that does is enough to hold the state.
        change.adding, change.removing = start_workers(turn, free), list(now)
        state.wanted = max(1, state.wanted - len({*now} - removed(state, change)) + free)
        return ""
    refusal = _begin_migrate(turn, change)
    if refusal:
        # Nobody else would hold the state: what is left is to end in order, with a checkpoint if the script keeps some.
        text = f"{change.reason}, and it cannot move: {refusal}; the job stops"
        turn.record("preempted", text=text)
        cancel(turn, text)
        state.text = text
        turn.move_job(JobPhase.STOPPING)
    return refusal


BEGIN: dict[str, Callable[[Turn, Change], str]] = {
    "scale_out": _begin_out,
    "replace": _begin_out,
    "scale_in": _begin_in,
    "remove": _begin_in,
    "scale": _begin_scale,
    "resize": _begin_scale,
    "migrate": _begin_migrate,
    "place": begin_place,
    "preempt": _begin_preempt,
    "rebalance": lambda _turn, _change: "",  # the weights are set; the next view takes them
}

# What is more than a step of a profile, and ends it. (`place` does so when it is asked for.)
SIZERS = frozenset({"scale_out", "scale_in", "scale", "migrate", "preempt"})
# What a change of these kinds does depends on its newcomers.
ADDERS = frozenset({"scale_out", "replace", "migrate"})
