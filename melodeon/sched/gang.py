"""What schedulers that are not elastic share: all devices that a job wants at once, of one type, or none."""

from collections.abc import Iterable

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share


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

    def take(self, job: JobState, wants: Iterable[tuple[DeviceType, int]]) -> Counts | None:
        """Give a job the first of these offers that fits, on the type that it holds if that is one; None: it waits."""
        offers = [(kind, count) for kind, count in wants if 0 < count <= self._free.get(kind, 0)]
        if not offers:
            return None
        kind, count = next(((kind, count) for kind, count in offers if job.held(kind)), offers[0])
        self._free[kind] -= count
        return ((kind, count),)

    def requested(self, spec: JobSpec) -> list[tuple[DeviceType, int]]:
        """What the user asked for, on each type that the job can run on, at most all of them."""
        most = spec.requested_workers if spec.max_workers is None else min(spec.requested_workers, spec.max_workers)
        return [(kind, min(most, self._capacity[kind])) for kind, _ in spec.curves if self._capacity.get(kind)]


def share(job: JobState, counts: Counts, why: str) -> tuple[JobId, Share]:
    """An entry of a decision."""
    return job.spec.id, Share(job.spec.id, counts, why)
