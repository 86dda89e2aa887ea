"""`place`: workers on exactly the device slots that are named, by one change.

Whoever is on another slot leaves, who is missing is started, and one view has both. A slot whose last worker is still
ending is waited for. Losses on the way are made good on the same slots, as far as restarts are left.
"""

from collections.abc import Mapping

from melodeon.coord.master_state import Change, MasterState, Turn
from melodeon.coord.views import Place, alive, in_use, places, room, seated, start_worker
from melodeon.core.text import counted

Slots = Mapping[str, list[int]]


def read_slots(raw: object) -> dict[str, list[int]]:
    """`{"node0": [0, 1]}` in order and without nodes that have none; ValueError says what is wrong with it."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"slots={raw!r} must name slots by agent, such as {{'node0': [0, 1]}}")
    found: dict[str, list[int]] = {}
    for agent, slots in sorted(raw.items()):
        if not isinstance(agent, str) or not isinstance(slots, list | tuple):
            raise ValueError(f"slots of {agent!r} are {slots!r}: they must be a list of numbers")
        if not all(isinstance(slot, int) and not isinstance(slot, bool) for slot in slots):
            raise ValueError(f"slots of {agent!r} are {slots!r}: each must be a whole number")
        if len(set(slots)) < len(slots):
            raise ValueError(f"slots of {agent!r} are {slots!r}: name each once")
        if slots:
            found[agent] = sorted(slots)
    return found


def in_words(slots: Slots) -> str:
    """For people: `node0: 0, 1; node1: 3`."""
    return "; ".join(f"{agent}: {', '.join(map(str, some))}" for agent, some in slots.items())


def refusal(state: MasterState, slots: Slots) -> str:
    """Why workers cannot be there, or nothing."""
    for agent, some in slots.items():
        info = state.agents.get(agent)
        if info is None or info.lost:
            names = ", ".join(name for name, known in sorted(state.agents.items()) if not known.lost)
            return f"there is no agent {agent!r}: choose one of {names or 'none'}"
        if wrong := [slot for slot in some if not 0 <= slot < info.slots]:
            return f"agent {agent} has no slot {wrong[0]}: choose 0 to {info.slots - 1}"
    count, most, least = len(places(slots)), room(state), max(1, state.config.min_workers)
    if not least <= count <= most:
        return (
            f"{counted(count, 'slot')} cannot be: choose {least} to {most} for "
            f"{counted(state.virtual_workers, 'virtual worker')}, one worker each"
        )
    if state.virtual_workers == 1 and not any(_place(state, worker) in places(slots) for worker in seated(state)):
        return "a job with virtual_workers=1 cannot move: its state is copied inside a view of two; raise it to 2"
    return ""


def begin_place(turn: Turn, change: Change) -> str:
    """Who leaves, and which slots need a worker; what an earlier wish has started there is taken over."""
    state = turn.state
    if why := refusal(state, change.slots):
        return why
    state.slots = change.slots
    # Of those that it has taken over some may be lost by now: their slots are missing like any other.
    change.adding = [worker for worker in change.adding if alive(state, worker)]
    change.removing = [worker for worker in seated(state) if _place(state, worker) not in places(change.slots)]
    change.waiting = _missing(state, change)
    state.wanted = len(places(change.slots))
    # Replacements that are owed are among those that this starts.
    state.restarts_left += state.owed
    state.owed = 0
    return ""


def pursue_place(turn: Turn, change: Change) -> bool:
    """Start workers where there is room by now; True while a slot is waited for."""
    state = turn.state
    empty = _missing(state, change)
    # Somebody whose device was wanted back may have moved to one of them while this change stood aside.
    change.waiting = [place for place in change.waiting if place in empty]
    missing = [place for place in empty if place not in change.waiting]
    owed = min(state.owed, len(missing))  # lost meanwhile, and to be replaced
    state.owed -= owed
    change.waiting += missing[:owed]
    for place in list(change.waiting):
        agent = state.agents[place[0]]
        if agent.lost:
            change.waiting.remove(place)
            change.notes.append(f"Agent {agent.agent} was lost.")
            state.wanted = max(1, state.wanted - 1)
        elif agent.heard and place not in in_use(state):
            change.waiting.remove(place)
            change.adding.append(start_worker(turn, *place))
    return bool(change.waiting)


def lose_newcomer(turn: Turn) -> None:
    """One of those that were to be added is lost: another takes its slot, if restarts are left."""
    state = turn.state
    if state.restarts_left > 0:
        state.restarts_left -= 1
        state.owed += 1
    else:
        state.wanted = max(1, state.wanted - 1)


def is_placed(state: MasterState, change: Change) -> bool:
    """Its workers are where they were wished to be, and nowhere else."""
    return sorted(_place(state, worker) for worker in seated(state)) == sorted(places(change.slots))


def stay(turn: Turn, change: Change) -> None:
    """Nobody could be added and nobody would be left: the job goes on where it is."""
    settle_down(turn.state)
    change.removing = []


def settle_down(state: MasterState) -> None:
    """The slots on which the job's workers are become its slots."""
    here: dict[str, list[int]] = {}
    for agent, slot in sorted(_place(state, worker) for worker in seated(state) if worker in state.workers):
        here.setdefault(agent, []).append(slot)
    state.slots, state.wanted = here, max(1, len(seated(state)))


def _place(state: MasterState, worker: int) -> Place:
    info = state.workers.get(worker)
    return ("", -1) if info is None else (info.agent, info.slot)


def _missing(state: MasterState, change: Change) -> list[Place]:
    """The slots without a worker that has a seat or is to get one."""
    held = {_place(state, worker) for worker in (*seated(state), *change.adding) if alive(state, worker)}
    return [place for place in places(change.slots) if place not in held]
