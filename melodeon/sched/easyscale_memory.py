"""What EasyScale remembers of a job between rounds: what it had before it last grew, and what turned out slower."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.easyscale_plan import should_fall_back


@dataclass(frozen=True, slots=True)
class Memory:
    """One job's past."""

    home: DeviceType | None = None
    """The type that it first ran on; where types do not mix, it stays there."""
    before: Counts = ()
    """What it held before it grew to `grown`; empty: it did not grow, or that was judged already."""
    before_rate: float = 0.0
    grown: Counts = ()
    slower: frozenset[Counts] = frozenset()
    """Devices that it has tried and given back."""
    changed_s: float = 0.0
    """When its devices last changed."""


def measured_rate(job: JobState) -> float:
    """Steps a second as the job runs now."""
    return job.spec.rate(job.counts) * job.speed


def fall_back(job: JobState, memory: Memory, tolerance: float) -> Counts | None:
    """The devices to go back to, where growing made the job slower; None: it stays."""
    if not memory.before or job.counts != memory.grown:
        return None
    return memory.before if should_fall_back(memory.before_rate, measured_rate(job), tolerance) else None


def remember(
    now_s: float, job: JobState, share: Share | None, fell_back: bool, memories: Mapping[JobId, Memory]
) -> Memory:
    """The memory for the next round, after this one gave the job a share."""
    old = memories.get(job.spec.id, Memory())
    if share is None:
        return replace(old, before=(), grown=())
    home = old.home or share.counts[0][0]
    slower = old.slower | {job.counts} if fell_back else old.slower
    changed_s = now_s if share.counts != job.counts else old.changed_s
    if job.counts and not fell_back and share.num_devices > job.num_devices:
        return Memory(home, job.counts, measured_rate(job), share.counts, slower, changed_s)
    return Memory(home, slower=slower, changed_s=changed_s)
