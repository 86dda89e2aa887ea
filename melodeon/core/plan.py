"""What a round decides: shares (how much, and why), a plan (where), and the actions that lead there.

Structs rather than dataclasses: rounds make thousands of them, and a frozen dataclass takes ten times as long to make.
`gc=False`, here and where else rounds make many: values made from finished values cannot lead back to themselves, so
the garbage collector need not watch them.
"""

from collections.abc import Mapping

import msgspec

from melodeon.core.cluster import Counts, DeviceType, total
from melodeon.core.jobs import JobId


class Share(msgspec.Struct, frozen=True, gc=False):
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
        return total(self.counts)


class Block(msgspec.Struct, frozen=True, gc=False, order=True):
    """An aligned run of devices of one type: `size` devices from slot `start` of the type's topology."""

    kind: DeviceType
    start: int
    size: int


Placement = tuple[Block, ...]
"""Where one job runs: one block for a compact job, several where the count or the cluster forces it."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer to a submitted job."""

    job: JobId
    admitted: bool
    why: str
    earliest_deadline_s: float | None = None
    """For a job that was turned away: the earliest deadline that would have been accepted, if one was found."""


class Start(msgspec.Struct, frozen=True, gc=False):
    """Run a waiting job."""

    job: JobId
    placement: Placement
    why: str


class Resize(msgspec.Struct, frozen=True, gc=False):
    """Change the number of devices of a running job."""

    job: JobId
    before: Placement
    placement: Placement
    why: str


class Migrate(msgspec.Struct, frozen=True, gc=False):
    """Move a running job to as many other devices."""

    job: JobId
    before: Placement
    placement: Placement
    why: str


class Suspend(msgspec.Struct, frozen=True, gc=False):
    """Stop a running job, to go on later."""

    job: JobId
    before: Placement
    why: str


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Turn a submitted job away."""

    job: JobId
    why: str
    earliest_deadline_s: float | None = None


Action = Start | Resize | Migrate | Suspend | Reject


class Plan(msgspec.Struct, frozen=True):
    """The shares placed on devices."""

    shares: Mapping[JobId, Share]
    placements: Mapping[JobId, Placement]
