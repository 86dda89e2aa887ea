"""EasyScale's inter-job scheduler: free devices go to the proposals with the highest speed-up per device.

    keep      running jobs stay, less what has nothing to do; one that grew and became slower goes back to what it had
    start     waiting jobs, in order of submission, on the least that they can run on
    grow      Algorithm 1: proposals by speed-up per device, then by number of devices, while there are devices

`easyscale-homo` keeps every job on one type of device, `easyscale-heter` lets those mix that have curves for several.
An approved job proposes again in the same round, so that a round ends when no free device is of use to anybody, where
EasyScale's job masters come back a minute later. Trades away: nothing is taken from a job for the sake of another's
speed; with `guarantee` it is, but only so that a waiting job gets its minimum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.easyscale_desk import Desk
from melodeon.sched.easyscale_job import Limits, outlook_of
from melodeon.sched.easyscale_memory import Memory, fall_back, remember
from melodeon.sched.estimate import ladders
from melodeon.sched.policy import Decision

MOST_GROWTH = 1e6
"""A job that grows so much at once takes any cluster whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyScaleHeter:
    """The policy, with its options: a job may mix the types that it has curves for."""

    max_waste: float = 0.30
    """Configurations that waste a larger share of their devices are ruled out."""
    top_k: int = 3
    """Proposals of each job."""
    growth: float = 2.0
    """A proposal asks for at most so many times the devices that the job holds."""
    guarantee: bool = False
    """Whether a waiting job's `min_workers` are taken from jobs above theirs (minP); without, it waits (minP = 0)."""
    trial_s: float = 0.0
    """How long a job runs as it is before it may grow again, so that the last change can be judged; 0: a job grows as
    far as it goes at once. EasyScale's masters come back every 60 s."""
    linear: bool = False
    """Predict from the speed of one device alone and find out by trying; needs `trial_s`."""
    tolerance: float = 0.0
    """A job may become slower by this share and still not fall back."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_waste < 1 or not 0 <= self.tolerance < 1:
            raise UsageError(f"max_waste={self.max_waste} and tolerance={self.tolerance} are shares: both in [0, 1)")
        if self.top_k < 1 or not 1 < self.growth <= MOST_GROWTH:
            raise UsageError(
                f"top_k={self.top_k} must be at least 1 and growth={self.growth} above 1, at most {MOST_GROWTH:g}"
            )
        if self.trial_s < 0 or (self.linear and not self.trial_s):
            raise UsageError(f"trial_s={self.trial_s} must not be negative, and above 0 with linear: 60 is usual")

    def kinds(self, view: ClusterView, job: JobState, memory: Memory) -> tuple[DeviceType, ...]:
        """The types that a job may use; none: all of them together are too few for its least."""
        del memory
        there = tuple(kind for kind, _ in job.spec.curves if kind in view.cluster.types)
        return there if sum(map(view.cluster.count, there)) >= job.spec.min_workers else ()

    @property
    def mixed(self) -> bool:
        """Whether one job may hold several types."""
        return True

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Keep, start, grow."""
        memories: Mapping[JobId, Memory] = state if isinstance(state, Mapping) else {}
        kinds = {job.spec.id: self.kinds(view, job, memories.get(job.spec.id, Memory())) for job in view.admitted}
        jobs = [job for job in view.admitted if kinds[job.spec.id]]
        desk = Desk(
            dict(view.cluster.capacity),
            {job.spec.id: outlook_of(job.spec, kinds[job.spec.id], linear=self.linear) for job in jobs},
            {name: memory.slower for name, memory in memories.items()},
            Limits(self.max_waste, self.growth, self.top_k, self.mixed),
        )
        desk.keep([job for job in jobs if job.counts])
        fell: set[JobId] = set()
        for job in jobs:
            before = fall_back(job, memories.get(job.spec.id, Memory()), self.tolerance)
            if before is not None and desk.fall_back(job.spec.id, before):
                fell.add(job.spec.id)
        desk.start([job for job in jobs if job.spec.id not in desk.holdings], guarantee=self.guarantee)
        desk.grow(resting=fell | self._on_trial(view, jobs, memories), once=self.trial_s > 0)
        shares: dict[JobId, Share] = {}
        for job in jobs:
            held = desk.holdings.get(job.spec.id)
            if held is not None:
                shares[job.spec.id] = Share(job.spec.id, held.plan.counts, held.why)
        after = {
            job.spec.id: remember(view.now_s, job, shares.get(job.spec.id), job.spec.id in fell, memories)
            for job in jobs
        }
        judged_s = [after[name].changed_s + self.trial_s for name in shares] if self.trial_s else []
        return Decision(shares, after, min((at for at in judged_s if at > view.now_s), default=None))

    def _on_trial(self, view: ClusterView, jobs: list[JobState], memories: Mapping[JobId, Memory]) -> set[JobId]:
        """Jobs that must show first how fast they are."""
        if not self.trial_s:
            return set()
        started = {job.spec.id for job in jobs if not job.counts}
        return started | {name for name, memory in memories.items() if memory.changed_s + self.trial_s > view.now_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyScaleHomo(EasyScaleHeter):
    """The same, each job on one type: its first one with enough devices for its least."""

    any_type: bool = False
    """Start on whichever of its types is free instead, and stay there."""

    @property
    def mixed(self) -> bool:
        """A job holds one type."""
        return False

    def kinds(self, view: ClusterView, job: JobState, memory: Memory) -> tuple[DeviceType, ...]:
        """Its home, where it has one."""
        if memory.home is not None:
            return (memory.home,)
        there = tuple(kind for kind, _ in ladders(view, job.spec))
        return there if self.any_type else there[:1]
