"""Everything that can happen to the cluster, one small value for each fact: the log is the truth, the state its sum.

Facts name what was decided or seen, never what to do about it, so a log can be read again by a later version. Times are
not in them: the log gives every fact its number and its moment.
"""

from typing import Any, ClassVar, Literal, get_args

import msgspec

from melodeon.backends.fleet_values import How
from melodeon.core.cluster import Counts
from melodeon.core.plan import Placement

SlotTable = dict[str, tuple[int, ...]]
"""Device slots by node."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact"):
    """Base of all facts."""

    job: ClassVar[str | None] = None


class JobFact(Fact, frozen=True, kw_only=True):
    """Something about one job."""

    job: str  # type: ignore[misc]  # the base has none


class Started(Fact, frozen=True, kw_only=True, tag="controller-started"):
    """A controller took up its work."""

    version: str
    policy: str
    nodes: tuple[tuple[str, str, int, str], ...]
    """(id, device type, devices, rack) of every node."""


class Submitted(JobFact, frozen=True, kw_only=True, tag="submitted"):
    """A job came in."""

    number: int
    user: str
    spec: dict[str, Any]
    """The job's file."""
    deadline_at: float | None
    signature: str
    """What its speed depends on; jobs that share it share their scaling curve."""
    measure: bool
    """It is judged when its speed has been measured, not before."""


class Judged(JobFact, frozen=True, kw_only=True, tag="judged"):
    """The answer to a job."""

    admitted: bool
    why: str
    earliest_at: float | None = None
    policy: str = ""


class Planned(JobFact, frozen=True, kw_only=True, tag="planned"):
    """A job's devices from now on; none: it waits."""

    counts: Counts
    placement: Placement
    slots: SlotTable
    why: str


class Launched(JobFact, frozen=True, kw_only=True, tag="launched"):
    """An incarnation is to be started; written before anything is done about it."""

    incarnation: int
    slots: SlotTable


class Training(JobFact, frozen=True, kw_only=True, tag="training"):
    """Its workers have begun."""

    incarnation: int
    step: int = 0


class Sized(JobFact, frozen=True, kw_only=True, tag="sized"):
    """How many steps and virtual workers it has became known."""

    total_steps: int | None
    steps_per_epoch: int | None
    virtual_workers: int | None = None


class Moved(JobFact, frozen=True, kw_only=True, tag="moved"):
    """Its workers are on these devices now."""

    incarnation: int
    slots: SlotTable
    pause_s: float = 0.0
    """Seconds without progress since this incarnation began."""
    step: int = 0


class Ended(JobFact, frozen=True, kw_only=True, tag="ended"):
    """An incarnation ended."""

    incarnation: int
    status: How
    exit_code: int | None = None
    reason: str = ""
    digest: str | None = None
    step: int | None = None
    pause_s: float = 0.0
    ended_at: float | None = None
    """When, where that is known: before it was heard of, and long before where no controller was there to hear it."""


class Paused(JobFact, frozen=True, kw_only=True, tag="paused"):
    """It stood still while its workers changed, and trains on."""

    incarnation: int
    pause_s: float
    """In all changes of this incarnation so far."""


class CancelAsked(JobFact, frozen=True, kw_only=True, tag="cancel-asked"):
    """Somebody wants it to end."""

    user: str


class Edited(JobFact, frozen=True, kw_only=True, tag="edited"):
    """Its file was changed."""

    user: str
    spec: dict[str, Any]
    deadline_at: float | None
    changed: tuple[str, ...]
    admitted: bool = False
    """It was judged again with the change, and admitted."""
    why: str = ""


class EditRefused(JobFact, frozen=True, kw_only=True, tag="edit-refused"):
    """A change would not have been admitted: everything stays as it was."""

    user: str
    changed: tuple[str, ...]
    why: str
    earliest_at: float | None = None


class Overridden(JobFact, frozen=True, kw_only=True, tag="overridden"):
    """An operator fixed its number of workers; None: no more."""

    user: str
    workers: int | None


class Late(JobFact, frozen=True, kw_only=True, tag="late"):
    """Its deadline passed."""


class Stuck(JobFact, frozen=True, kw_only=True, tag="stuck"):
    """It needs somebody to look; an empty text: no more."""

    text: str


class Warned(JobFact, frozen=True, kw_only=True, tag="warned"):
    """Its workers said something that whoever wrote the job should know."""

    text: str


class CurveMeasured(JobFact, frozen=True, kw_only=True, tag="curve"):
    """Its speed was measured."""

    signature: str
    device_type: str
    points: dict[int, float]
    """Steps a second by workers: only what is new."""
    source: Literal["given", "profiled", "measured"]
    struck: tuple[int, ...] = ()
    """Sizes that turned out to be no faster than a smaller one."""


class ProfileFailed(JobFact, frozen=True, kw_only=True, tag="profile-failed"):
    """Its speed could not be measured: it is judged by what was seen."""

    why: str


class PolicySet(Fact, frozen=True, kw_only=True, tag="policy"):
    """Another policy decides from now on."""

    policy: str
    user: str


class NodeSet(Fact, frozen=True, kw_only=True, tag="node"):
    """A node's health, or an operator's wish about it, changed."""

    node: str
    up: bool
    drained: bool
    user: str


class Forgotten(Fact, frozen=True, kw_only=True, tag="forgotten"):
    """Jobs that were over before a moment are no longer known."""

    before: float


AnyFact = (
    Started
    | Submitted
    | Judged
    | Planned
    | Launched
    | Training
    | Sized
    | Moved
    | Paused
    | Ended
    | CancelAsked
    | Edited
    | EditRefused
    | Overridden
    | Late
    | Stuck
    | Warned
    | CurveMeasured
    | ProfileFailed
    | PolicySet
    | NodeSet
    | Forgotten
)
FACTS: tuple[type[Fact], ...] = get_args(AnyFact)


class Entry(msgspec.Struct, frozen=True):
    """One line of the log."""

    seq: int
    at: float
    fact: AnyFact


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyFact] = msgspec.json.Decoder(AnyFact)


def kind_of(fact: Fact) -> str:
    """The fact's name in the log."""
    return str(fact.__struct_config__.tag)


def encode(fact: Fact) -> bytes:
    """As the log keeps it."""
    return _encoder.encode(fact)


def decode(raw: bytes) -> AnyFact:
    """Read it back."""
    return _decoder.decode(raw)
