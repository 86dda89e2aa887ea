"""Chronus: leases. Which deadline jobs hold the next lease is a small integer programme; best effort takes the rest.

Time is cut into leases of `lease_s`. At every boundary the jobs that can still be in time are chosen by `leases.solve`
so that as many as possible are, those chosen before first. Everyone else, late jobs too, is best effort and goes by the
least service left. Nobody loses its devices within a lease; what becomes free in between goes to who waits. Jobs
get what they requested: Chronus is not elastic.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId
from melodeon.core.plan import Share
from melodeon.sched.edf_rules import deadline
from melodeon.sched.estimate import Offer, seconds_left
from melodeon.sched.gang import Room, staying
from melodeon.sched.leases import Bounds, Claim, solve
from melodeon.sched.policy import Decision, check_period

WEIGHTS = {Goal.HARD: 1.0, Goal.SOFT: 0.5}
PROMISED = 20.0
"""A job that was chosen before weighs so many times as much, so that newcomers do not push it out."""

MOST_NODES = 2**31 - 1
"""The solver counts in 32 bits."""


@dataclass(frozen=True, slots=True)
class _State:
    """What one round leaves for the next."""

    boundary_s: float
    """When the leases end."""
    chosen: frozenset[JobId] = frozenset()
    """Deadline jobs that the last programme found room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronus:
    """The policy, with its options."""

    lease_s: float = 600.0
    max_jobs: int = 48
    """At most so many deadline jobs are in one programme, the earliest deadlines first; the others are best effort."""
    max_nodes: int = 200
    """Branches that the solver may look at. A bound on work, not on time, so that the answer does not hang on the
    machine."""
    time_limit_s: float = 30.0
    """A last resort; a programme that reaches it may be answered differently on another machine."""

    whole_leases: bool = False
    """Count in whole leases only, as ElasticFlow's own code does: a job needs every lease that it begins, and the lease
    in which its deadline lies is of no use to it."""

    def __post_init__(self) -> None:
        check_period("lease_s", self.lease_s)
        if self.max_jobs < 1 or self.time_limit_s <= 0:
            raise UsageError(
                f"max_jobs={self.max_jobs} and time_limit_s={self.time_limit_s:g} must be above 0: 48 and 30 are usual"
            )
        if not 1 <= self.max_nodes <= MOST_NODES:
            raise UsageError(f"max_nodes={self.max_nodes} must be from 1 to {MOST_NODES}: 200 is usual")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """At a boundary new leases; in between, everybody keeps its own and the free devices are used."""
        old = state if isinstance(state, _State) else _State(view.now_s)
        if not view.admitted:
            return Decision({}, old)
        room = Room(view)
        shares: dict[JobId, Share] = {}
        boundary_s = old.boundary_s
        first: dict[JobId, Offer] = {}
        if view.now_s < boundary_s:
            chosen = old.chosen
            shares = staying(view, room, "its lease runs")
        else:
            boundary_s = (floor(view.now_s / self.lease_s) + 1) * self.lease_s
            chosen, first = self._choose(view, room, boundary_s, old.chosen)
        for job in sorted((j for j in view.admitted if j.spec.id in first), key=deadline):
            _give(room, shares, job, (first[job.spec.id],), "chosen for this lease so that most deadlines are met")
        for job in sorted(view.admitted, key=lambda job: _rest(view, room, job, chosen)):
            ahead = job.spec.id in chosen
            why = (
                "free, and it is chosen for a later lease" if ahead else "left by the jobs chosen, least service first"
            )
            _give(room, shares, job, room.requested(job.spec), why)
            if room.is_empty:
                break
        return Decision(shares, _State(boundary_s, chosen), boundary_s)

    def _choose(
        self, view: ClusterView, room: Room, boundary_s: float, before: frozenset[JobId]
    ) -> tuple[frozenset[JobId], dict[JobId, Offer]]:
        """The deadline jobs that will be in time, and what those get that must run in the lease that begins now."""
        bounds = Bounds(self.max_nodes, self.time_limit_s)
        claims: dict[DeviceType, list[Claim]] = {}
        for job in sorted(view.admitted, key=deadline):
            offer = _home(room, job)
            claim = _claim(view, job, offer, job.spec.id in before) if offer is not None else None
            if claim is not None and self.whole_leases:
                claim = _whole(claim, boundary_s - self.lease_s, self.lease_s)
            if offer is not None and claim is not None and len(claims.setdefault(offer[0], [])) < self.max_jobs:
                claims[offer[0]].append(claim)
        chosen: set[JobId] = set()
        first: dict[JobId, Offer] = {}
        for kind, own in claims.items():
            answer = solve(own, view.cluster.count(kind), view.now_s, boundary_s, self.lease_s, bounds)
            chosen |= answer.in_time
            first.update({claim.job: (kind, claim.workers) for claim in own if claim.job in answer.first})
        return frozenset(chosen), first


def _home(room: Room, job: JobState) -> Offer | None:
    wants = room.requested(job.spec)
    return next((offer for offer in wants if job.held(offer[0])), wants[0] if wants else None)


def _claim(view: ClusterView, job: JobState, offer: Offer, promised: bool) -> Claim | None:
    """What a deadline job asks of the programme; None: it has no deadline, or it cannot be in time any more."""
    due = job.spec.deadline_s
    if due is None:
        return None
    kind, workers = offer
    needs_s = seconds_left(view, job, kind, workers)
    if not job.counts or view.now_s + needs_s > due:
        # It may have to stop and go on: room for one pause, unless that alone makes it late.
        spare_s = view.overheads.pause_s(job.spec.model, workers)
        needs_s += spare_s if view.now_s + needs_s + spare_s <= due else 0.0
    if view.now_s + needs_s > due:
        return None
    weight = WEIGHTS[job.spec.goal] * (PROMISED if promised else 1.0)
    return Claim(job.spec.id, workers, needs_s, due, weight, bool(job.counts))


def _whole(claim: Claim, start_s: float, lease_s: float) -> Claim | None:
    """The claim in whole leases: those that it needs begun, that of its deadline not; None: that is too many."""
    due_s = floor(claim.deadline_s / lease_s) * lease_s
    needs_s = ceil(claim.needs_s / lease_s) * lease_s
    return claim._replace(needs_s=needs_s, deadline_s=due_s) if start_s + needs_s <= due_s else None


def _rest(view: ClusterView, room: Room, job: JobState, chosen: frozenset[JobId]) -> tuple[bool, float, float]:
    """Jobs that will be in time first, so that free devices bring them ahead; then by the service still needed."""
    offer = _home(room, job)
    left_s = seconds_left(view, job, *offer) * offer[1] if offer is not None else float("inf")
    if job.spec.id in chosen:
        return False, *deadline(job)
    return True, left_s, job.spec.submit_s


def _give(room: Room, shares: dict[JobId, Share], job: JobState, wants: Iterable[Offer], why: str) -> None:
    if job.spec.id not in shares:
        counts = room.take(job, wants)
        if counts is not None:
            shares[job.spec.id] = Share(job.spec.id, counts, why)
