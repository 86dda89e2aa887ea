"""A worker's way from view to view.

Planned: the next view's group is connected and its exchange opened in the background; when every worker could switch,
the header of some step says so to all of them at once, and they switch at the end of that step. Unplanned: an alarm
sounds, the step is given up, and whoever is left meets again.

Entering a view is the same for both, and for newcomers: everybody says how many steps it has committed; the highest
number wins; who has less copies the state from who has it. If nobody has any, the job begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch.distributed as dist

from melodeon.coord.failpoint import failpoint
from melodeon.coord.messages import Phase
from melodeon.core.errors import WorkerLost
from melodeon.core.replication import Place, plan
from melodeon.core.view import View
from melodeon.runtime.carrier import Pending
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.group import Group
from melodeon.runtime.link import Link
from melodeon.runtime.reduce import Signals
from melodeon.runtime.transfer import Door, describe, furnish, replicate

NOTHING = -1
"""Steps committed by a worker that has no state."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker has come when it enters a view."""

    step: int
    definition: str
    due: int | None = None
    """The loader whose boundary was interrupted: its digest, metrics and checkpoint are to be done again."""


class Trainer(Protocol):
    """What the views ask of the job."""

    def standing(self) -> Standing:
        """How far this worker has come."""

    def layout(self) -> str:
        """What an exchange depends on besides its view."""

    def open_exchange(self, group: Group, view: View) -> Exchange:
        """Open the exchange of a view, on its carrier."""

    def begin(self, group: Group) -> None:
        """Nobody has any state: compare models, read the newest checkpoint."""

    def capture(self) -> dict[str, Any]:
        """The job's state at the last boundary."""

    def restore(self, captured: dict[str, Any]) -> None:
        """Go on from this state."""

    def part(self) -> None:
        """Nobody needs this worker any more: it ends, and the job goes on without it."""

    def reseat(self, group: Group, view: View, exchange: Exchange, due: int | None) -> None:
        """Train in this view from here on."""


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
        self.generation = 0
        """The view that this worker is in; 0: none yet."""
        self._link = link
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
        self._failed = 0
        """The newest generation that could not be entered, or fell apart."""

    # -- at every step -------------------------------------------------------------------------------------------------

    def signals(self) -> Signals:
        """What this worker has heard, for the step's header."""
        notice = self._link.notice
        return Signals(self._armed(), notice.checkpoint, notice.stop)

    def _armed(self) -> int:
        view = self._link.view
        if view is None or view.generation <= self.generation or not view.planned:
            return self.generation
        if view.rank_of(self._link.worker) is None:
            return view.generation
        prepared = self._next
        ready = prepared is not None and prepared.view is view and prepared.connection.succeeded
        return view.generation if ready else self.generation

    def outdated(self) -> bool:
        """Whether this view is over without having agreed on the next; starts to prepare a planned one."""
        view = self._link.view
        if view is None or view.generation <= self.generation:
            return False
        if not view.planned:
            return True
        if (self._next is None or self._next.view is not view) and view.rank_of(self._link.worker) is not None:
            self._next = self._prepare(view)
        return False

    def fell_apart(self) -> None:
        """A peer of this view cannot be reached: the master may not know it yet."""
        self._failed = max(self._failed, self.generation)
        self._link.post(broken=self.generation)

    # -- between two views ---------------------------------------------------------------------------------------------

    def switch(self, generation: int) -> None:
        """Enter the planned view that everybody is ready for, or what follows it."""
        failpoint("view.switch")
        self._advance(planned=generation)

    def renew(self) -> None:
        """Enter the newest view that is not waiting for an agreement."""
        self._advance(planned=0)

    def join(self) -> None:
        """A new worker: wait for a view with a seat, and enter it."""
        self._link.post(phase=Phase.READY)
        failpoint("view.ready")
        self._advance(planned=None)

    def _advance(self, planned: int | None) -> None:
        """Enter views until one holds; `planned` names the planned one that may be entered (None: any)."""
        while True:
            view = self._await(planned)
            try:
                self._enter(view)
            except WorkerLost:
                self._failed = view.generation
                self._link.post(broken=view.generation)
                continue
            return

    def _await(self, planned: int | None) -> View:
        link = self._link

        def there() -> bool:
            if link.notice.released or (link.notice.stop and self.generation == 0):
                return True
            view = link.view
            if view is None or view.generation <= max(self.generation, self._failed):
                return False
            return not view.planned or planned is None or view.generation == planned

        link.wait(there)
        view = link.view
        newer = view is not None and view.generation > max(self.generation, self._failed)
        if not newer or view is None or (link.notice.released and view.rank_of(link.worker) is None):
            self._leave()
        assert view is not None
        return view

    def _leave(self) -> None:
        """Nobody needs this worker any more."""
        failpoint("view.leave")
        self._trainer.part()
        raise SystemExit(0)

    def _prepare(self, view: View) -> Prepared:
        """Connect a view's group and open its exchange, in the background."""
        rank = view.rank_of(self._link.worker)
        assert rank is not None
        group = Group(rank, len(view.seats), alarm=self._link.guard(view.generation))
        layout, description = self._trainer.layout(), self._description(view)

        def connect() -> Connection:
            failpoint("view.connect")
            if group.size > 1:
                group.meet(_meeting(view, self._folder), view.generation, host=self._host)
            failpoint("view.met")
            door = Door(self._host or "127.0.0.1")
            offers = [
                msgspec.msgpack.decode(body, type=Offer)
                for body in group.gather_bytes(msgspec.msgpack.encode(Offer(door.invitation, description)))
            ]
            connection = Connection(
                self._trainer.open_exchange(group, view),
                door,
                {number: offer.invitation for number, offer in enumerate(offers)},
            )
            failpoint("view.opened")
            described = max((offer.description for offer in offers), key=len)
            if self.generation == 0 and described:
                connection.room = furnish(described, self._trainer.capture())
            return connection

        return Prepared(view, group, layout, group.carrier.submit(connect))

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
        prepared = self._next if self._next is not None and self._next.view is view else self._prepare(view)
        self._next = None
        group, trainer = prepared.group, self._trainer
        connection = group.wait(prepared.connection)
        failpoint("view.connected")
        standings = [
            msgspec.json.decode(body, type=Standing)
            for body in group.gather_bytes(msgspec.json.encode(trainer.standing()))
        ]
        failpoint("view.gathered")
        top = max(standing.step for standing in standings)
        if top == NOTHING:
            failpoint("view.begin")
            trainer.begin(group)
        else:
            self._copy(view, group, standings, connection)
        connection.door.close()
        failpoint("view.copied")
        exchange = connection.exchange
        if b"other" in group.gather_bytes(b"same" if trainer.layout() == prepared.layout else b"other"):
            exchange = group.call(trainer.open_exchange, group, view)
        due = next((standing.due for standing in standings if standing.step == top and standing.due is not None), None)
        failpoint("view.seat")
        trainer.reseat(group, view, exchange, due)
        old, self._group, self.generation = self._group, group, view.generation
        self._view = view
        self._link.forget(view.generation - 1)
        if old is not None:
            # Not before: a slower worker may still have been receiving the last of the old view.
            old.close()
        self._link.post(phase=Phase.MEMBER, generation=view.generation)
        failpoint("view.entered")

    def _copy(self, view: View, group: Group, standings: Sequence[Standing], connection: Connection) -> None:
        """Bring everybody to the highest committed step."""
        top = max(standing.step for standing in standings)
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
        room = None
        if standings[group.rank].step == NOTHING:
            room = connection.room if connection.room is not None else self._trainer.capture()
        received = replicate(group.rank, copies, connection.door, connection.invitations, into=room, check=alarm.check)
        assert received is not None, "who is behind receives"
        failpoint("view.received")
        self._trainer.restore(received.state)

    def _wait_for_release(self, view: View) -> None:
        """Without a seat: hold the state until the others are well in their view, then end."""
        failpoint("view.leaving")
        link = self._link
        link.wait(lambda: link.notice.released or (link.view is not None and link.view.generation > view.generation))
        if link.notice.released:
            self._leave()
        raise WorkerLost(f"view {view.generation} was replaced while this worker was leaving")


def _meeting(view: View, folder: Path) -> Any:
    if view.meeting == "file":
        folder.mkdir(parents=True, exist_ok=True)
        return dist.FileStore(str(folder / str(view.generation)), len(view.seats))  # type: ignore[attr-defined]
    host, _, port = view.meeting.removeprefix("tcp:").rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
