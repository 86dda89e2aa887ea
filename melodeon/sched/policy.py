"""What a policy is: one method from a view and a state to shares and the next state.

A policy is a frozen value; what it must remember between rounds it returns as its state, which only it can read. The
first round gets None. A policy that can turn jobs away has a second method, `admit`; without it every job is admitted.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share, Verdict

SHORTEST_S, LONGEST_S = 1.0, 1e9
"""What a policy's leases, rounds and intervals may be."""


def check_period(name: str, period_s: float) -> None:
    """A policy that wakes itself does so at most every second, and some day."""
    if not SHORTEST_S <= period_s <= LONGEST_S:
        raise UsageError(f"{name}={period_s:g} must be at least 1 s and at most {LONGEST_S:g} s: it is a time to wait")


class Decision(msgspec.Struct, frozen=True):
    """What one round gives to whom."""

    shares: Mapping[JobId, Share] = msgspec.field(default_factory=dict)
    """Jobs that are not named wait."""
    state: object = None
    wake_at: float | None = None
    """Decide again at this time even if nothing happens before; None: wait for an event."""


class Policy(Protocol):
    """Divides the devices among the admitted jobs of a view (`view.admitted`)."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The shares from now on: at most what each type has, at least `min_workers` a job."""
        ...


class Admission(Protocol):
    """A policy that judges newcomers."""

    def admit(self, view: ClusterView, job: JobState, state: object) -> tuple[Verdict, object]:
        """Judge one submitted job, given the jobs admitted so far; also the next state."""
        ...
