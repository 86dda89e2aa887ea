"""When jobs will be done: played forward where they are few; where they are many, the latest that it should be.

    up to PLAYED jobs        an answer waits until the cluster has been played forward
    up to PLAYED_LATER jobs  the same, worked out from time to time beside the loop
    above                    all the work before a job, done by all the devices that it may use, then the job itself

Playing forward costs a round for every start and end, so it grows with the square of the jobs; the other is one look at
each. No decision hangs on either.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from melodeon.control import whatif
from melodeon.control.ahead import shares_ahead
from melodeon.control.rounds import Progress, World, policy_of, view_of
from melodeon.control.state import State
from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.errors import MelodeonError
from melodeon.core.jobs import Goal, JobId
from melodeon.core.service import Span
from melodeon.sched.tick import TickState

log = logging.getLogger("melodeon.control")

PLAYED = 40
PLAYED_LATER = 100


@dataclass(frozen=True, slots=True)
class Played:
    """A cluster played forward."""

    ends: Mapping[str, float] = field(default_factory=dict)
    """When each job will be done."""
    shares: tuple[Span, ...] = ()
    """Who will hold which devices until then."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A cluster to look ahead from. A value: it can be looked at from another thread."""

    view: ClusterView
    world: World
    fixed: Mapping[JobId, int]
    memory: TickState
    origin: float

    @classmethod
    def of(
        cls, state: State, world: World, memory: TickState, progress: Mapping[str, Progress], now: float
    ) -> "Standing":
        """Where the cluster stands now."""
        view = view_of(state, world, progress, now)
        return cls(
            view, world, policy_of(state, world).fixed, memory, state.origin if state.origin is not None else now
        )

    def played(self) -> Played:
        """What will become of everybody if nothing else is submitted; nothing where that cannot be worked out."""
        if not self.view.jobs:
            return Played()
        try:
            found = whatif.as_it_is(self.view, self.world, self.fixed, self.memory)
        except (AssertionError, ArithmeticError, LookupError, MelodeonError) as error:
            log.warning("no plan ahead can be shown: %r", error)  # jobs need none
            return Played()
        ends: dict[str, float] = {o.id: o.finished_s + self.origin for o in found.outcomes if o.finished_s is not None}
        return Played(ends, shares_ahead(self.view, found, self.origin))

    def latest(self, names: Collection[str] | None = None) -> dict[str, float]:
        """When each job (or those named) should be done at the latest."""
        found = latest(self.view, names, promised=hasattr(self.world.policy, "admit"))
        return {name: at + self.origin for name, at in found.items()}

    def foretold(self) -> dict[str, float]:
        """The same for pages: a deadline that may still be met is not shown as missed."""
        jobs, found = self.view.jobs, {}
        for name, at in self.latest().items():
            due_s = jobs[JobId(name)].spec.deadline_s
            if due_s is None or at <= due_s + self.origin:
                found[name] = at
        return found


def latest(view: ClusterView, names: Collection[str] | None = None, *, promised: bool) -> dict[str, float]:
    """When jobs should be done at the latest under a policy that leaves no device idle while a job waits for it.

    While a job waits, the devices that it may use work on others; once it has run for as long as its fewest workers
    need, it is done. `promised`: and not after a deadline that it was admitted for.
    """
    load: dict[DeviceType, float] = {}
    for job in view.jobs.values():
        for kind, ladder in job.spec.ladders:
            load[kind] = load.get(kind, 0.0) + _device_seconds(view, job, ladder)
    found: dict[str, float] = {}
    for name in view.jobs if names is None else names:
        asked = view.jobs.get(JobId(name))
        if asked is None:
            continue
        ends = [end for kind, ladder in asked.spec.ladders if (end := _end(view, asked, kind, ladder, load[kind]))]
        if ends:
            due = asked.spec.deadline_s if promised and asked.spec.goal is Goal.HARD else None
            end_s = view.now_s + min(ends)
            found[name] = end_s if due is None or due <= view.now_s else min(end_s, due)
    return found


def _device_seconds(view: ClusterView, job: JobState, ladder: Ladder) -> float:
    """What a job may still take of one type's time, at the size that makes least of it, with one change more."""
    if not ladder.levels:
        return 0.0
    top = ladder.levels[-1]
    pause_s = view.overheads.pause_s(job.spec.model, top, fresh=job.started_s is None)
    return job.remaining / job.speed * _worst(ladder) + pause_s * top


@lru_cache(maxsize=4096)
def _worst(ladder: Ladder) -> float:
    """Device-seconds for a step at the size that makes least of them."""
    return max(size / rate for size, rate in zip(ladder.levels, ladder.rates, strict=True))


def _end(view: ClusterView, job: JobState, kind: DeviceType, ladder: Ladder, load: float) -> float | None:
    """Seconds until a job is done on one type; None: it is not there."""
    if not ladder.levels:
        return None
    # Fewer devices than it needs at least may stay idle beside it.
    useful = view.cluster.count(kind) - ladder.levels[0] + 1
    if useful <= 0:
        return None
    own_s = job.remaining / job.speed / ladder.rates[0] + view.overheads.pause_s(job.spec.model, ladder.levels[0])
    return (load - _device_seconds(view, job, ladder)) / useful + own_s
