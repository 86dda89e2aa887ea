"""Who copies the job's state to whom, and when: a pure function of where the workers are.

Each newcomer copies from its nearest holder. Copies run side by side unless they share a contended link; those go in
turn, in rounds. A newcomer that has the state may serve later rounds, so that a job spreads over hosts like a tree,
where that ends sooner. Among holders on one host the write is what counts, not the reads: through shared memory one
write serves every reader of its round, so newcomers gather at one holder.

A round is a unit of planning, not a barrier: a copy waits only for the copies in `after`, for its source to have the
state, and for its source's earlier rounds. All copies are taken to last as long as each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class Distance(IntEnum):
    """How far apart two workers are."""

    BUS = 0
    """On one bus of one host."""
    HOST = 1
    """On one host: through its memory."""
    RACK = 2
    """One switch away."""
    NETWORK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is. Names that are left empty are not told apart."""

    host: str
    rack: str = ""
    bus: str = ""

    def distance(self, other: "Place") -> Distance:
        """How far away `other` is."""
        if self.host == other.host:
            return Distance.BUS if self.bus == other.bus else Distance.HOST
        return Distance.RACK if self.rack == other.rack else Distance.NETWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Which links carry one copy at a time."""

    network: bool = True
    """Each host's network card, once in each direction."""
    memory: bool = False
    """Each host's memory, for copies within the host."""
    uplink: bool = False
    """Each rack's way to the others, once in each direction."""

    def used(self, source: Place, target: Place) -> tuple[str, ...]:
        """The contended links of a copy; one source's copies within its host are one write and share the memory."""
        if source.host == target.host:
            return (f"memory of {source.host}",) if self.memory else ()
        cards = (f"out of {source.host}", f"into {target.host}") if self.network else ()
        crosses = self.uplink and source.rack != target.rack
        return (*cards, f"up from {source.rack}", f"down to {target.rack}") if crosses else cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One newcomer's copy of the state."""

    source: int
    target: int
    round: int
    distance: Distance
    after: tuple[int, ...] = ()
    """The targets whose copies must have ended: they come from other sources over a link that this copy needs."""


def plan(
    holders: Iterable[int], newcomers: Iterable[int], place: Mapping[int, Place], links: Links | None = None
) -> tuple[Copy, ...]:
    """Every newcomer's copy, by round and target. The same workers and places always give the same plan."""
    having, wanting = sorted(set(holders)), sorted(set(newcomers))
    assert not set(having) & set(wanting), f"workers {set(having) & set(wanting)} cannot both hold and lack the state"
    assert having or not wanting, f"nobody holds the state that workers {wanting} need"
    links = links or Links()
    nearest = _Schedule(having, wanting, place, links, relay=False).copies
    relayed = _Schedule(having, wanting, place, links, relay=True).copies
    return min(nearest, relayed, key=_cost)  # the first one of equals: no relays for nothing


def num_rounds(copies: Iterable[Copy]) -> int:
    """How many copies' time the whole takes."""
    return max((copy.round + 1 for copy in copies), default=0)


def _cost(copies: tuple[Copy, ...]) -> tuple[int, int]:
    return num_rounds(copies), sum(copy.distance for copy in copies)


class _Schedule:
    """Rounds filled greedily, near pairs first; with `relay` whoever has the state serves, else the nearest holders.

    A round takes at least one newcomer, so there are never more rounds than copies.
    """

    def __init__(
        self, holders: list[int], newcomers: list[int], place: Mapping[int, Place], links: Links, *, relay: bool
    ) -> None:
        self._place = place
        self._links = links
        self._relay = relay
        self._having = list(holders)
        self._writes = dict.fromkeys((*holders, *newcomers), 0)
        self._last: dict[str, list[Copy]] = {}
        """Link -> the copies of the last round that used it."""
        self._nearest = {
            target: min((place[source].distance(place[target]) for source in holders), default=Distance.NETWORK)
            for target in newcomers
        }
        made: list[Copy] = []
        wanting, number = list(newcomers), 0
        while wanting:
            copies = self._round(wanting, number)
            self._note(copies)
            made += copies
            served = {copy.target for copy in copies}
            wanting = [target for target in wanting if target not in served]
            if relay:
                self._having = sorted((*self._having, *served))
            number += 1
        self.copies = tuple(made)

    def _round(self, wanting: list[int], number: int) -> list[Copy]:
        taken: dict[str, int] = {}
        """Link -> the source that uses it in this round."""
        writing: set[int] = set()
        found: dict[int, Copy] = {}
        for reach in Distance:
            for target in wanting:
                if target in found or not (self._relay or reach == self._nearest[target]):
                    continue
                source = self._source(target, reach, taken, writing)
                if source is None:
                    continue
                used = self._links.used(self._place[source], self._place[target])
                taken.update(dict.fromkeys(used, source))
                self._writes[source] += self._added(source, reach, writing)
                if reach <= Distance.HOST:
                    writing.add(source)
                after = sorted({at for link in used for at in self._before(link, source)})
                found[target] = Copy(source=source, target=target, round=number, distance=reach, after=tuple(after))
        return [found[target] for target in sorted(found)]

    def _source(self, target: int, reach: Distance, taken: dict[str, int], writing: set[int]) -> int | None:
        """The least loaded worker at that distance whose way is free; the lowest number among equals."""
        place = self._place[target]
        free = [
            (self._writes[source] + self._added(source, reach, writing), source)
            for source in self._having
            if self._place[source].distance(place) == reach
            and all(
                link not in taken or (reach <= Distance.HOST and taken[link] == source)
                for link in self._links.used(self._place[source], place)
            )
        ]
        return min(free)[1] if free else None

    @staticmethod
    def _added(source: int, reach: Distance, writing: set[int]) -> int:
        """A reader more of a write that is made anyway adds nothing."""
        return 0 if reach <= Distance.HOST and source in writing else 1

    def _before(self, link: str, source: int) -> list[int]:
        """Those to wait for; a source keeps the order of its own copies, and has its own state when it serves."""
        earlier = self._last.get(link, [])
        return [copy.target for copy in earlier if copy.source != source and copy.target != source]

    def _note(self, copies: list[Copy]) -> None:
        fresh: dict[str, list[Copy]] = {}
        for copy in copies:
            for link in self._links.used(self._place[copy.source], self._place[copy.target]):
                fresh.setdefault(link, []).append(copy)
        self._last.update(fresh)
