"""Gavel: max-min fairness over effective throughput on clusters of several device types, in rounds.

A linear program gives every job its part of the time on every type, such that the worst normalised throughput is as
good as it can be (`maxmin`, `offers`); rounds follow these parts (`timeshares`). Not elastic: a job runs on what it
requested, of one type, or waits. Devices that become free within a round are filled at once; parts are computed anew
at a round's start if jobs or devices have changed. Packing two jobs on one device is left out.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView
from melodeon.sched.gang import share
from melodeon.sched.offers import homogeneous
from melodeon.sched.policy import Decision, check_period
from melodeon.sched.timeshares import next_turn, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel:
    """The policy, with its option."""

    round_s: float = 360.0
    """Six minutes, as in the paper."""

    def __post_init__(self) -> None:
        check_period("round_s", self.round_s)

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Who runs in this round, on which type."""
        offers = {job.spec.id: homogeneous(view, job.spec) for job in view.admitted}
        turn = next_turn(view, state, self.round_s, offers)
        shares = dict(
            share(view.jobs[job_id], counts, reason(turn.ledger, view.jobs[job_id], counts))
            for job_id, counts in turn.given.items()
        )
        return Decision(shares, turn.ledger, turn.wake_at)
