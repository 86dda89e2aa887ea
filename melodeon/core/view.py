"""A view: the numbered membership of a job, as every part of it sees it.

Generations only grow. Whoever holds a message, a write or a state of an older generation than the one it meets is out
of date, and is refused.
"""

import msgspec

from melodeon.core.assignment import Assignment


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's place in a view."""

    worker: int
    """The worker's number: unique in the job, never given twice."""
    agent: str
    host: str
    count: int
    """How many virtual workers it runs."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Who trains, and who runs which virtual workers. A seat's index is the worker's rank in the group."""

    generation: int
    seats: tuple[Seat, ...]
    planned: bool
    """Planned: switch together at the end of a step. Not planned: somebody is gone, give the step up and switch now."""
    meeting: str
    """Where the workers of this generation find each other: `file` (under the run's folder) or `tcp:HOST:PORT`."""
    reason: str
    """One sentence for people: why the view changed."""
    leaving: tuple[int, ...] = ()
    """Workers of the view before without a seat in this one; they hold their state until they are released."""
    factor: int = 0
    """Hybrid scaling: the batch factor that it trains with; 0: the one in the job's state."""

    @property
    def assignment(self) -> Assignment:
        """Which contiguous range of virtual workers each rank runs."""
        return Assignment(tuple(seat.count for seat in self.seats))

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers in the order of their ranks."""
        return tuple(seat.worker for seat in self.seats)

    def rank_of(self, worker: int) -> int | None:
        """The rank of a worker, or None where it has no seat."""
        return next((rank for rank, seat in enumerate(self.seats) if seat.worker == worker), None)
