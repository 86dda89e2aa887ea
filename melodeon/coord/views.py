"""Making views: who sits where, in which order, with how many virtual workers, and where they meet.

Survivors keep their old order (so that most virtual workers stay where they are), newcomers come after them.
"""

from collections.abc import Mapping, Sequence

from melodeon.coord.batches import next_factor
from melodeon.coord.master_state import Change, JobPhase, MasterState, Turn, WorkerInfo
from melodeon.coord.messages import Phase
from melodeon.coord.shares import counts_from_weights
from melodeon.core.view import Seat, View

Place = tuple[str, int]
"""An agent and one of its device slots."""


def alive(state: MasterState, worker: int) -> bool:
    """Not gone, not through with training, and not let go: it can take part in a view."""
    info = state.workers.get(worker)
    return info is not None and info.phase is not Phase.GONE and not info.finished and not info.released


def seated(state: MasterState) -> tuple[int, ...]:
    """The workers with a seat in the newest view."""
    return state.view.workers if state.view else ()


def entered(state: MasterState, worker: int) -> bool:
    """It has entered the newest view."""
    info = state.workers.get(worker)
    return info is not None and state.view is not None and info.generation == state.view.generation


def unsettled(state: MasterState) -> bool:
    """A view is proposed that not all of its seats have entered."""
    return state.view is not None and (state.settled is None or state.settled.generation < state.view.generation)


def concerned(state: MasterState) -> tuple[int, ...]:
    """All whose loss tears the newest view: its seats, and until it is settled those of the view before."""
    workers = dict.fromkeys(seated(state))
    if unsettled(state) and state.view is not None:
        workers.update(dict.fromkeys(state.settled.workers if state.settled else ()))
        workers.update(dict.fromkeys(state.view.leaving))
    return tuple(worker for worker in workers if worker in state.workers and not state.workers[worker].released)


def changes(state: MasterState) -> list[Change]:
    """The current change, and those that wait: some of them have begun, and stood aside for another."""
    return [*([state.current] if state.current else []), *state.queue]


def removed(state: MasterState, but: Change) -> set[int]:
    """Whom changes that have begun remove, other than this one: they are not counted among the wanted any more, or
    have a successor.
    """
    return {worker for change in changes(state) if change is not but for worker in change.removing}


def room(state: MasterState) -> int:
    """How many workers the job may have: everyone runs at least one virtual worker."""
    return min(state.config.max_workers or state.virtual_workers, state.virtual_workers)


def places(slots: Mapping[str, Sequence[int]]) -> list[Place]:
    """Slots by agent, one by one."""
    return [(agent, slot) for agent, some in slots.items() for slot in some]


def in_use(state: MasterState, *, soon: bool = False) -> set[Place]:
    """Where somebody is who is not gone; `soon`: and has not been let go."""
    there = [info for info in state.workers.values() if info.phase is not Phase.GONE]
    return {(info.agent, info.slot) for info in there if not (soon and info.released)}


def find_room(state: MasterState, count: int, on: str = "", *, soon: bool = False) -> list[Place]:
    """Free slots of the job for `count` workers, least loaded agent first; fewer if there are not so many.

    `soon`: those too that somebody who was let go has not left yet.
    """
    used = in_use(state, soon=soon)
    free: dict[str, list[int]] = {}
    load: dict[str, int] = {}
    for name, agent in state.agents.items():
        if agent.lost or not agent.heard or on not in ("", name):
            continue
        own = state.slots.get(name, []) if state.slots else range(agent.slots)
        free[name] = [slot for slot in range(agent.slots) if slot in own and (name, slot) not in used]
        load[name] = sum(place[0] == name for place in used)
    found: list[Place] = []
    while len(found) < count and any(free.values()):
        name = min((name for name in free if free[name]), key=lambda name: (load[name], name))
        found.append((name, free[name].pop(0)))
        load[name] += 1
    return found


def start_workers(turn: Turn, count: int, on: str = "") -> list[int]:
    """Order new workers where there is room; returns their numbers."""
    return [start_worker(turn, *place) for place in find_room(turn.state, count, on)]


def start_worker(turn: Turn, agent: str, slot: int) -> int:
    """Order a new worker there; returns its number."""
    state = turn.state
    worker = state.next_worker
    state.next_worker += 1
    state.workers[worker] = WorkerInfo(worker=worker, agent=agent, slot=slot)
    turn.record("worker_started", worker=worker, agent=agent, slot=slot)
    return worker


def drop_worker(turn: Turn, worker: int, how: str) -> None:
    """A worker without a seat is not wanted any more: it is not listed from now on, and so it is killed."""
    turn.state.workers[worker].phase = Phase.GONE
    turn.record("worker_gone", worker=worker, how=how, exit_code=None)


def propose(turn: Turn, workers: Sequence[int], *, planned: bool, reason: str) -> View:
    """The next generation, of these workers."""
    state = turn.state
    state.generation += 1
    leaving = tuple(w for w in seated(state) if w not in workers and alive(state, w)) if planned else ()
    view = View(
        generation=state.generation,
        seats=_seats(state, workers),
        planned=planned,
        meeting=_meeting(state, workers),
        reason=reason,
        leaving=leaving,
        factor=next_factor(turn, workers, planned=planned),
    )
    state.view = view
    state.torn = ""
    for info in state.workers.values():
        info.slow = 0
    # A settled view speaks for itself; busy times are compared afresh, and patience with the old group is over.
    for name in ("broken", "done"):
        turn.calm(name)
    if state.phase is JobPhase.STARTING:
        turn.move_job(JobPhase.TRAINING)
    turn.dirty = True
    return view


def counts_for(state: MasterState, workers: Sequence[int]) -> tuple[int, ...]:
    """How many virtual workers each of them runs."""
    return counts_from_weights(state.virtual_workers, [state.workers[worker].weight for worker in workers])


def _seats(state: MasterState, workers: Sequence[int]) -> tuple[Seat, ...]:
    seats = []
    for worker, count in zip(workers, counts_for(state, workers), strict=True):
        agent = state.agents[state.workers[worker].agent]
        seats.append(Seat(worker=worker, agent=agent.agent, host=agent.host, count=count))
    return tuple(seats)


def _meeting(state: MasterState, workers: Sequence[int]) -> str:
    """Members come first in `workers`, so a store that already serves is preferred."""
    hosts = {state.agents[state.workers[worker].agent].host for worker in workers}
    address = next((state.workers[w].address for w in workers if state.workers[w].address), "")
    return "file" if len(hosts) == 1 or not address else f"tcp:{address}"
