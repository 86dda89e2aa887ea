"""What schedulers that are not elastic share: all devices that a job wants at once, of one type, or none."""

from collections.abc import Iterable

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share
from melodeon.sched.estimate import Offer


class Room:
    """Devices that are still free in this round, by type. Mutable, and private to one decision."""

    def __init__(self, view: ClusterView) -> None:
        self._capacity = dict(view.cluster.capacity)
        self._free = dict(view.cluster.capacity)

    @property
    def is_empty(self) -> bool:
        """Whether every device is given away."""
        return not any(self._free.values())

    def free(self, kind: DeviceType) -> int:
        """Devices of a type that are left."""
        return self._free.get(kind, 0)

    def take(self, job: JobState, wants: Iterable[Offer]) -> Counts | None:
        """Give a job the first of these offers that fits, on the type that it holds if that is one; None: it waits."""
        offers = [(kind, count) for kind, count in wants if 0 < count <= self._free.get(kind, 0)]
        if not offers:
            return None
        kind, count = next(((kind, count) for kind, count in offers if job.held(kind)), offers[0])
        self._free[kind] -= count
        return ((kind, count),)

    def keep(self, job: JobState) -> Counts | None:
        """Leave a job all that it holds, of several types too; None: it holds nothing, or not all of it is there."""
        if not job.counts or any(count > self._free.get(kind, 0) for kind, count in job.counts):
            return None
        for kind, count in job.counts:
            self._free[kind] -= count
        return job.counts

    def requested(self, spec: JobSpec) -> list[Offer]:
        """What the job asks for on each type that has at least its least; at most all devices of the type."""
        most = asked(spec)
        have = [(kind, self._capacity.get(kind, 0)) for kind, _ in spec.curves]
        return [(kind, min(most, count)) for kind, count in have if count >= spec.min_workers]


def asked(spec: JobSpec) -> int:
    """The devices that the user asked for, within the job's own bounds."""
    wanted = max(spec.requested_workers, spec.min_workers)
    return wanted if spec.max_workers is None else min(wanted, spec.max_workers)


def granted(spec: JobSpec, given: int) -> str:
    """Why a job that gets what it requested does, or all of a type where there are never so many."""
    wanted = asked(spec)
    if given >= wanted:
        return "what it requested is free"
    return f"all {given} devices that there are, of the {wanted} that it requested, are free"


def share(job: JobState, counts: Counts, why: str) -> tuple[JobId, Share]:
    """An entry of a decision."""
    return job.spec.id, Share(job.spec.id, counts, why)


def staying(view: ClusterView, room: Room, why: str = "it runs until it is done") -> dict[JobId, Share]:
    """Everybody keeps what it has, as far as it is still there."""
    kept = ((job.spec.id, room.keep(job)) for job in view.admitted)
    return {name: Share(name, counts, why) for name, counts in kept if counts is not None}
