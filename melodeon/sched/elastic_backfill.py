"""Elastic backfill (Elan): elastic FIFO, but later jobs may pass a head that cannot start if they do not delay it.

The head starts when its least becomes free, foreseen from the shares that the running jobs would have. A later job may
start if the admission rule lets it and that moment comes no later with it.
"""

from dataclasses import dataclass

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.sched.elastic_rules import Pool, open_pools, start
from melodeon.sched.policy import Decision

WORK = 3000
"""Fewer jobs are tried behind the head where that would be more than so many jobs to look at in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBackfill:
    """The policy, with its option."""

    depth: int = 32
    """At most this many waiting jobs are tried behind the head; each costs an allocation."""

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise UsageError(f"depth={self.depth} is a number of jobs: it starts at 0")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The queue's head while it may start, then those who may pass it, then everything to those who run."""
        pools, waiting = open_pools(view)
        behind = iter(waiting)
        head = next((job for job in behind if not start(pools, job)), None)
        if head is not None:
            running = sum(len(pool.members) for pool in pools.values())
            for _, job in zip(range(min(self.depth, WORK // (running + 1))), behind, strict=False):
                _pass(pools, head, job)
        return Decision({job: share for pool in pools.values() for job, share in pool.shares().items()}, state)


def _pass(pools: dict[DeviceType, Pool], head: JobState, job: JobState) -> None:
    """Start a job on the first type that admits it and where the head loses nothing."""
    for kind, pool in pools.items():
        if job.spec.ladder(kind) is None or not pool.fits(job) or _delays(pool, head, job):
            continue
        reason = pool.admits(job)
        if reason is not None:
            pool.join(job, f"it passes {head.spec.id}, which starts no later for it; {reason}")
            return


def _delays(pool: Pool, head: JobState, job: JobState) -> bool:
    ladder = head.spec.ladder(pool.kind)
    if ladder is None or ladder.levels[0] > pool.capacity:
        return False
    before_s, _ = pool.free_at(ladder.levels[0], pool.allocation())
    after_s, _ = pool.free_at(ladder.levels[0], pool.allocation(job), job)
    return after_s > before_s
