"""What the service says over HTTP: one frozen value for every answer, used by the server, the client and the pages.

Plain dataclasses, so that the server's framework describes them in OpenAPI and the client reads them without it. Times
end in `_at` (seconds since 1970) or `_s` (a length in seconds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any


class Phase(StrEnum):
    """Where a job of the cluster is."""

    PROFILING = "profiling"
    """Trains while its speed is measured; then it is judged."""
    WAITING = "waiting"
    """Admitted, and holds no device now; it may have trained before."""
    STARTING = "starting"
    """Holds devices; its workers are not training yet."""
    RUNNING = "running"
    SUSPENDING = "suspending"
    """Writes its state and gives its devices back; then it waits."""
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROFILING: frozenset(
        {Phase.WAITING, Phase.STARTING, Phase.RUNNING, Phase.REJECTED, Phase.CANCELLING, Phase.DONE, Phase.FAILED}
    ),
    Phase.WAITING: frozenset({Phase.STARTING, Phase.CANCELLED, Phase.REJECTED, Phase.FAILED}),
    Phase.STARTING: frozenset(
        {Phase.RUNNING, Phase.WAITING, Phase.SUSPENDING, Phase.CANCELLING, Phase.DONE, Phase.FAILED}
    ),
    Phase.RUNNING: frozenset(
        {Phase.STARTING, Phase.WAITING, Phase.SUSPENDING, Phase.CANCELLING, Phase.DONE, Phase.FAILED}
    ),
    Phase.SUSPENDING: frozenset({Phase.WAITING, Phase.CANCELLING, Phase.DONE, Phase.FAILED}),
    Phase.CANCELLING: frozenset({Phase.CANCELLED, Phase.DONE, Phase.FAILED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.REJECTED: frozenset(),
}
"""Every move of a job. Its workers may all be lost at once: then it starts again, or waits for devices."""

OVER = frozenset(phase for phase, after in MOVES.items() if not after)


def finite(value: float | None) -> float | None:
    """A figure as JSON can say it: None where it diverged, or is too large for a float."""
    try:
        return float(value) if value is not None and isfinite(value) else None
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a node."""

    node: str
    index: int
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job as it stands."""

    id: str
    name: str
    user: str
    phase: Phase
    why: str = ""
    """One clause: why it has what it has, waits, was turned away, or how it ended."""
    goal: str = "best_effort"
    """`hard`, `soft` or `best_effort`."""
    submitted_at: float
    deadline_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    planned_finish_at: float | None = None
    """When it will be done if nothing else is submitted, by its scaling curve; behind many others, at the latest."""
    earliest_deadline_at: float | None = None
    """For a job that was turned away: the earliest deadline that would have been accepted."""
    workers: int = 0
    """Devices that it holds now."""
    min_workers: int = 1
    max_workers: int = 1
    override: int | None = None
    """Workers that an operator has fixed."""
    devices: tuple[Device, ...] = ()
    step: int = 0
    total_steps: int | None = None
    """None: not known before its first epoch has begun."""
    steps_per_s: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The newest logged means; null: one that is not finite, since JSON has no word for it."""
    priority: float = 1.0
    curve: Mapping[str, float] = field(default_factory=dict)
    """Steps a second by number of workers, measured or given."""
    num_resizes: int = 0
    num_suspensions: int = 0
    pause_s: float = 0.0
    """Seconds without progress because of changes of its workers."""
    incarnation: int = 0
    """How often it was started."""
    run_dir: str = ""
    digest: str | None = None
    """Of the final state."""
    exit_code: int | None = None
    warnings: tuple[str, ...] = ()
    """What its workers said that whoever wrote it should know."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The job's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The answer to a submitted (or edited) job."""

    job: JobInfo
    admitted: bool | None
    """None: its speed is being measured first; the answer follows."""
    text: str
    """One sentence: the answer and its reason."""
    next: str = ""
    """The command to go on with."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node and who uses it."""

    id: str
    type: str
    rack: str = ""
    up: bool = True
    drained: bool = False
    """Nothing new is placed here, on an operator's wish."""
    num_devices: int = 1
    jobs: tuple[str | None, ...] = ()
    """By device: the job that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo:
    """One line of the cluster's log."""

    seq: int
    at: float
    kind: str
    job: str | None = None
    text: str = ""
    """For people."""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of a job's story."""

    at: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The cluster at one moment."""

    now: float
    policy: str
    num_devices: int
    devices_up: int
    devices_used: int
    jobs: Mapping[str, int]
    """By phase."""
    rounds: int = 0
    round_ms: float = 0.0
    """Of the last round."""
    started_at: float = 0.0
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A job held some devices for a while."""

    job: str
    devices: tuple[Device, ...]
    began_at: float
    ended_at: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Who held what and who will, for the chart."""

    since: float
    until: float
    spans: tuple[Span, ...] = ()
    planned: tuple[Span, ...] = ()
    """From now on: who will hold what if nothing else is submitted, as far as that is worked out."""
    capacity: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What one job did over time: columns of equal length."""

    columns: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """`step` and `at` and one for each logged metric; `workers_at` and `workers`; `pause_at` and `pause_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a job's output."""

    text: str
    """Without what would move a terminal's cursor."""
    next: str
    """Where to go on: opaque."""
    over: bool = False
    """The job has ended, and this is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfJob:
    """What would become of one job."""

    id: str
    admitted: bool
    why: str
    finish_at: float | None
    deadline_at: float | None
    in_time: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The cluster played forward from now, under another policy or with one more job."""

    policy: str
    jobs: tuple[WhatIfJob, ...]
    makespan_s: float | None
    """Until all that were admitted are done; null: some never would be, as on a cluster whose nodes are all drained."""
    mean_jct_s: float | None
    deadlines_met: int
    deadlines: int
    rejected: int
