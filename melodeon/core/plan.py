"""What a round decides: shares (how much, and why), a plan (where), and the actions that lead there."""

from collections.abc import Mapping
from dataclasses import dataclass

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.jobs import JobId


@dataclass(frozen=True, slots=True)
class Share:
    """How many devices a job gets, and why. A job without a share waits."""

    job: JobId
    counts: Counts
    """Devices by type, without zeros."""
    why: str
    """One clause for people: what gave the job this much."""
    pinned: bool = False
    """A migration would cost this job more than it can afford: it stays where it is while its node lives."""
    batch_size: int = 0
    """The global batch size that the policy chose with it; 0: the job's own."""

    @property
    def num_devices(self) -> int:
        """Devices of all types."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """An aligned run of devices of one type: `size` devices from slot `start` of the type's topology."""

    kind: DeviceType
    start: int
    size: int


Placement = tuple[Block, ...]
"""Where one job runs: one block for a compact job, several where the count or the cluster forces it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a submitted job."""

    job: JobId
    admitted: bool
    why: str
    earliest_deadline_s: float | None = None
    """For a job that was turned away: the earliest deadline that would have been accepted, if one was found."""


@dataclass(frozen=True, slots=True)
class Start:
    """Run a waiting job."""

    job: JobId
    placement: Placement
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the number of devices of a running job."""

    job: JobId
    before: Placement
    placement: Placement
    why: str


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a running job to as many other devices."""

    job: JobId
    before: Placement
    placement: Placement
    why: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Stop a running job, to go on later."""

    job: JobId
    before: Placement
    why: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Turn a submitted job away."""

    job: JobId
    why: str
    earliest_deadline_s: float | None = None


Action = Start | Resize | Migrate | Suspend | Reject


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares placed on devices."""

    shares: Mapping[JobId, Share]
    placements: Mapping[JobId, Placement]
