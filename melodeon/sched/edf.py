"""Earliest deadline first: each job on as many devices as make it faster, or on what the earlier leave; preemptive."""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.edf_rules import deadline, take
from melodeon.sched.gang import Room, share
from melodeon.sched.policy import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Edf:
    """The policy, with its option."""

    widest: bool = False
    """Give a job up to the most devices it was measured on, past its best speed too, as ElasticFlow's own code does."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """In order of deadline, until nothing is left."""
        room = Room(view)
        shares: dict[JobId, Share] = {}
        for place, job in enumerate(sorted(view.admitted, key=deadline)):
            counts = take(room, job, self.widest)
            if counts is not None:
                why = f"number {place + 1} by deadline, on as many devices as {'it knows' if self.widest else 'help'}"
                shares.update([share(job, counts, why)])
            if room.is_empty:
                break
        return Decision(shares, state)
