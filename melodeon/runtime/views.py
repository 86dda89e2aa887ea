"""A worker's way from view to view.

Planned: the next view's group is connected and its exchange opened in the background; when every worker could switch,
the header of some step says so to all of them at once, and they switch at the end of that step. Unplanned: an alarm
sounds, the step is given up, and whoever is left meets again.

Entering a view is the same for both, and for newcomers: everybody says how many steps it has committed; the highest
number wins; who has less copies the state from who has it. If nobody has any, the job begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch.distributed as dist

from melodeon.coord.failpoint import failpoint
from melodeon.coord.messages import Phase
from melodeon.coord.niceness import stand_back
from melodeon.core.errors import WorkerLost
from melodeon.core.replication import Place, plan
from melodeon.core.view import View
from melodeon.runtime.carrier import Pending
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.group import Group, peer_errors
from melodeon.runtime.link import Link
from melodeon.runtime.reduce import Signals
from melodeon.runtime.transfer import Door, Received, describe, furnish, remember, replicate

NOTHING = -1
"""Steps committed by a worker that has no state."""
_LEAVING_NICE = 15


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker has come when it enters a view."""

    step: int
    due: int | None = None
    """The loader whose boundary was interrupted: its digest, metrics and checkpoint are to be done again."""
    apart: bool = False
    """Its loop was left by `break` before that boundary: the script is in no pass."""
    beyond: bool = False
    """Its script has left the pass behind that boundary, so everybody had done all of it."""
    agreed: tuple[int, int, bool] = (0, 0, False)
    """What the header of its last step said to everybody."""
    checkpoint: int = 0
    """The newest checkpoint that was asked for and is on the disk."""
    layout: str = ""
    """What an exchange of its state depends on, besides the view."""
    prepared: str = ""
    """The layout that it has opened this view's exchange for."""


class Trainer(Protocol):
    """What the views ask of the job."""

    def standing(self) -> Standing:
        """How far this worker has come."""

    def layout(self, view: View) -> str:
        """What an exchange in this view depends on besides its seats."""

    def exchange_opener(self, group: Group, view: View) -> Callable[[], Exchange]:
        """What opens the exchange of a view, on its carrier, for the layout of now."""

    def begin(self, group: Group) -> None:
        """Nobody has any state: compare models, read the newest checkpoint."""

    def capture(self) -> dict[str, Any]:
        """The job's state at the last boundary."""

    def restore(self, captured: dict[str, Any], stand: Standing) -> None:
        """Go on from this state; whoever gave it stands where `stand` says."""

    def part(self) -> None:
        """Nobody needs this worker any more: it ends, and the job goes on without it."""

    def reseat(self, group: Group, view: View, exchange: Exchange, stand: Standing) -> None:
        """Train in this view from here on; everybody stands where `stand` says."""


class Offer(msgspec.Struct, frozen=True):
    """What a worker tells the others of a view as soon as they are connected."""

    invitation: bytes
    """Where its state can be had."""
    description: bytes = b""
    """What the state looks like, from one who has it: so that newcomers can make room before it comes."""


@dataclass(slots=True)
class Connection:
    """A view's connections, made beside the training."""

    exchange: Exchange
    door: Door
    invitations: dict[int, bytes]
    room: Any = None
    """For a newcomer: a state like the job's, to receive into."""
    put_back: Callable[[], None] | None = None
    """For a newcomer: makes its own tensors in that room what they were."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A view that is being connected in the background."""

    view: View
    group: Group
    layout: str
    connection: Pending[Connection]


class Views:
    """Follows the views that the agent names."""

    def __init__(self, link: Link, trainer: Trainer, folder: Path, host: str) -> None:
        self._link = link
        self._member = link.member
        self._trainer = trainer
        self._folder = folder
        self._host = host
        """The address at which other hosts' workers reach this one; empty: there are no other hosts."""
        self._store: Any = None
        if host:
            # Any worker may be the one at which the next view's workers meet.
            self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
            link.post(address=f"{host}:{self._store.port}")
        self._group: Group | None = None
        self._view: View | None = None
        self._next: Prepared | None = None
        self._given_up = NOTHING
        """The newest planned view that could not be connected, as the master was told."""
        self._spent: list[Callable[[], object]] = []
        """Gives back what the way into this view has left behind."""

    # -- at every step -------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The view that this worker is in; 0: none yet."""
        return self._member.entered

    def signals(self) -> Signals:
        """What this worker has heard, for the step's header."""
        if self._next is not None and self._next.connection.succeeded:
            self._member.prepare(self._next.view.generation)
        member = self._member
        return Signals(member.armed, member.checkpoint, member.stop, member.leaves_next)

    def outdated(self) -> bool:
        """Whether this view is over without having agreed on the next; a planned one is prepared meanwhile."""
        if self._member.give_up is not None:
            return True
        view = self._member.to_prepare
        if view is not None and (self._next is None or self._next.view is not view):
            self._forget_next()
            self._next = self._prepare(view)
        elif view is not None and self._next is not None:
            self._tell_failure(view, self._next.connection.failure)
        return False

    def _tell_failure(self, view: View, failure: BaseException | None) -> None:
        """A planned view that could not be connected is never entered: the master is told, once, and replaces it."""
        if failure is None or self._given_up == view.generation:
            return
        self._given_up = view.generation
        if not isinstance(failure, WorkerLost):  # this worker's own reason, which nobody else can tell
            why = str(failure) or type(failure).__name__
            self._link.say({"kind": "note", "text": f"worker {self._link.worker} cannot enter a view: {why}"})
        self._link.post(broken=view.generation)

    def tidy(self) -> None:
        """A step was trained in this view: nobody waits for this worker while it clears up behind itself."""
        while self._spent:
            self._spent.pop()()

    def fell_apart(self) -> None:
        """A peer of this view cannot be reached: the master may not know it yet."""
        self._link.post(broken=self._member.current)

    # -- between two views ---------------------------------------------------------------------------------------------

    def switch(self, generation: int) -> None:
        """Enter the planned view that everybody is ready for, or what follows it."""
        failpoint("view.switch")
        view = self._member.agreed(generation)
        if view is None or not self._try(view):
            self.renew()

    def renew(self) -> None:
        """Enter the newest view that is not waiting for an agreement, and newer ones until one holds."""
        while not self._try(self._await()):
            pass

    def join(self) -> None:
        """Wait, as a new worker, for a view with a seat, and enter it."""
        self._link.post(phase=Phase.READY)
        failpoint("view.ready")
        self.renew()

    def _try(self, view: View) -> bool:
        """Enter a view; False if somebody of it was lost meanwhile, or a newer one has come."""
        if not self._link.begin(view):
            return False
        try:
            self._enter(view)
        except WorkerLost:
            self._forget_next()
            self._link.post(broken=view.generation)
            return False
        return True

    def _await(self) -> View:
        """The next view to enter. Ends the process where there is none: released, or stopped before it had a seat."""
        member = self._member
        self._link.wait(lambda: member.give_up is not None or self._is_over())
        view = member.give_up
        if view is None:
            self._leave()
        assert view is not None
        return view

    def _is_over(self) -> bool:
        return self._member.may_end or (self._member.stop and self._member.entered == 0)

    def _leave(self) -> None:
        """Nobody needs this worker any more."""
        failpoint("view.leave")
        stand_back(_LEAVING_NICE)  # its end takes time of processors that the others train on
        self._trainer.part()
        raise SystemExit(0)

    def _prepare(self, view: View) -> Prepared:
        """Connect a view's group and open its exchange, in the background."""
        rank = view.rank_of(self._link.worker)
        assert rank is not None
        group = Group(rank, len(view.seats), alarm=self._link.guard(view.generation))
        # On this thread: the script's objects are asked for their state, and random streams are moved. The other one
        # may come to it when this view is given up and a step of the next one is under way, and the script may freeze
        # layers and thaw them again meanwhile.
        layout, description = self._trainer.layout(view), self._description(view)
        open_exchange = self._trainer.exchange_opener(group, view)
        own = self._trainer.capture() if self.generation == 0 else None

        def connect() -> Connection:
            failpoint("view.connect")
            if group.size > 1:
                with peer_errors("meeting"):
                    store = _meeting(view, self._folder)
                group.meet(store, view.generation, host=self._host)
            failpoint("view.met")
            door = Door(self._host or "127.0.0.1")
            group.hold("door", door.close)
            offers = [
                msgspec.msgpack.decode(body, type=Offer)
                for body in group.gather_bytes(msgspec.msgpack.encode(Offer(door.invitation, description)))
            ]
            connection = Connection(
                open_exchange(),
                door,
                {number: offer.invitation for number, offer in enumerate(offers)},
            )
            failpoint("view.opened")
            described = max((offer.description for offer in offers), key=len)
            if described:
                if own is not None:
                    connection.room, connection.put_back = furnish(described, own), remember(own)
                    failpoint("view.furnished")
                # Making room for a large state takes seconds where the others keep the processors busy; they train on
                # until it is there.
                group.barrier()
            return connection

        return Prepared(view, group, layout, group.carrier.submit(connect))

    def _forget_next(self) -> None:
        """The view that was prepared will not be entered: its connections and its memory are given back."""
        if self._next is not None:
            self._next.group.close()
            self._next = None

    def _description(self, view: View) -> bytes:
        """What the state looks like, said by the first of those who have it, if somebody joins."""
        known = set(self._view.workers) if self._view is not None else set()
        seated = [worker for worker in view.workers if worker in known]
        if not seated or seated[0] != self._link.worker or len(seated) == len(view.workers):
            return b""
        return describe(self._trainer.capture())

    def _enter(self, view: View) -> None:
        if view.rank_of(self._link.worker) is None:
            self._wait_for_release(view)
        if self._next is None or self._next.view is not view:
            self._forget_next()
            self._next = self._prepare(view)
        prepared, trainer = self._next, self._trainer
        group = prepared.group
        connection = group.wait(prepared.connection)
        failpoint("view.connected")
        mine = msgspec.structs.replace(trainer.standing(), layout=trainer.layout(view), prepared=prepared.layout)
        standings = [
            msgspec.msgpack.decode(body, type=Standing) for body in group.gather_bytes(msgspec.msgpack.encode(mine))
        ]
        failpoint("view.gathered")
        foremost = [standing for standing in standings if standing.step == max(each.step for each in standings)]
        if foremost[0].step == NOTHING:
            failpoint("view.begin")
            trainer.begin(group)
            fits = b"other" not in group.gather_bytes(b"same" if trainer.layout(view) == prepared.layout else b"other")
        else:
            self._copy(view, group, standings, connection)
            fits = all(standing.prepared == foremost[0].layout for standing in standings)  # all have that state now
        failpoint("view.copied")
        exchange = connection.exchange if fits else group.call(trainer.exchange_opener(group, view))
        failpoint("view.seat")
        trainer.reseat(group, view, exchange, _common(foremost))
        self.tidy()
        self._spent += [connection.door.close, [connection.put_back].clear]  # it takes time to give back, too
        if self._group is not None:
            # Not before: a slower worker may still have been receiving the last of the old view.
            self._spent.append(self._group.close)
        self._group, self._view, self._next = group, view, None
        self._member.enter()
        self._link.forget(view.generation - 1)
        # The agents' work on it would be in the way of the first step, which says it.
        self._link.post(urgent=foremost[0].step == NOTHING, phase=Phase.MEMBER, generation=view.generation)
        failpoint("view.entered")

    def _copy(self, view: View, group: Group, standings: Sequence[Standing], connection: Connection) -> None:
        """Bring everybody to the highest committed step."""
        top = max(standing.step for standing in standings)
        stand = _common([standing for standing in standings if standing.step == top])
        holders = [rank for rank, standing in enumerate(standings) if standing.step == top]
        behind = [rank for rank, standing in enumerate(standings) if standing.step != top]
        if not behind:
            return
        failpoint("view.copy")
        places = {rank: Place(host=seat.host) for rank, seat in enumerate(view.seats)}
        copies = plan(holders, behind, places)
        alarm = group.alarm
        assert alarm is not None, "an elastic job's group has an alarm"
        if group.rank in holders:
            replicate(
                group.rank,
                copies,
                connection.door,
                connection.invitations,
                state=self._trainer.capture(),
                check=alarm.check,
            )
            return

        # A newcomer's memory is filled in place. Who has a state keeps it until the newer one is whole: if the holder
        # dies meanwhile, it is what the others go on from.
        def take(received: Received) -> None:
            failpoint("view.received")
            self._trainer.restore(received.state, stand)

        room, put_back = None, None
        if standings[group.rank].step == NOTHING:
            room = connection.room if connection.room is not None else self._trainer.capture()
            put_back = connection.put_back or remember(room)
        try:
            replicate(
                group.rank,
                copies,
                connection.door,
                connection.invitations,
                into=room,
                take=take,
                check=alarm.check,
            )
        except WorkerLost:
            if put_back is not None and self._trainer.standing().step == NOTHING:
                put_back()  # if nobody else has the state, the job begins with the model as it was built
            raise

    def _wait_for_release(self, view: View) -> None:
        """Without a seat: hold the state until the others are well in their view, then end."""
        failpoint("view.leaving")
        member = self._member
        self._link.wait(lambda: member.may_end or member.give_up is not None)
        if member.give_up is None:
            self._leave()
        raise WorkerLost(f"view {view.generation} was replaced while this worker was leaving")


def _common(tops: Sequence[Standing]) -> Standing:
    """Where everybody stands from here on: what one of the foremost has left undone, all of them do again.

    Unless the script of one is beyond it: then only the word that all have done it was lost on the way to the others.
    """
    undone = next((standing for standing in tops if standing.due is not None), tops[0])
    due = None if any(standing.beyond for standing in tops) else undone.due
    checkpoint = max(standing.checkpoint for standing in tops)
    return msgspec.structs.replace(tops[0], due=due, apart=undone.apart, checkpoint=checkpoint)


def _meeting(view: View, folder: Path) -> Any:
    if view.meeting == "file":
        folder.mkdir(parents=True, exist_ok=True)
        return dist.FileStore(str(folder / str(view.generation)), len(view.seats))  # type: ignore[attr-defined]
    host, _, port = view.meeting.removeprefix("tcp:").rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
