"""What a policy sees: the cluster and its jobs at one moment. Nothing in it changes, nothing outside it counts."""

from collections.abc import Mapping

import msgspec

from melodeon.core.cluster import Cluster, Counts, DeviceType, total
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Placement


class JobState(msgspec.Struct, frozen=True, gc=False):
    """One unfinished job as it stands; every round makes one of each, so it is a struct, which is quick to make."""

    spec: JobSpec
    admitted_s: float | None = None
    """When it was admitted; None: just submitted, not judged yet."""
    done: float = 0.0
    """Iterations trained so far."""
    counts: Counts = ()
    """Devices that it holds now, by type; empty: it waits."""
    placement: Placement = ()
    resume_s: float = 0.0
    """A change of its workers keeps it still until then."""
    started_s: float | None = None
    """When it first held a device."""
    service_s: float = 0.0
    """Device-seconds held so far."""
    speed: float = 1.0
    """Its measured rate over its curve's: below 1 when a straggler is among its nodes."""

    @property
    def remaining(self) -> float:
        """Iterations still to train."""
        return self.spec.iterations - self.done

    @property
    def num_devices(self) -> int:
        """Devices of all types that it holds now."""
        return total(self.counts)

    def held(self, kind: DeviceType) -> int:
        """Devices of one type that it holds now."""
        for name, count in self.counts:
            if name == kind:
                return count
        return 0


class ClusterView(msgspec.Struct, frozen=True):
    """One moment of the cluster."""

    now_s: float
    cluster: Cluster
    jobs: Mapping[JobId, JobState]
    """Every unfinished job that was not turned away, in order of submission."""
    slot_s: float = 0.0
    """Decisions are taken at multiples of this many seconds; 0: at any time."""
    overheads: Overheads = msgspec.field(default_factory=Overheads)

    @property
    def admitted(self) -> tuple[JobState, ...]:
        """The jobs to decide about, in order of submission."""
        return tuple(job for job in self.jobs.values() if job.admitted_s is not None)
