"""What the parts of a job tell each other: whole documents, newest wins.

Nothing is a command that must arrive exactly once. Each side sends the whole of what it wants or knows, numbered; the
receiver takes a document whose number is higher than the last one's and answers with that number; the sender repeats
it until it is answered. A document that is lost, doubled, late or out of order can then do no harm.

    worker --Status--> agent --Report--> master --Orders--> agent --Notice--> worker
    person --Ask--> any agent --Ask--> master --Answer--> back the same way
"""

from enum import StrEnum
from typing import Any

import msgspec

from melodeon.core.view import View


class Phase(StrEnum):
    """Where a worker is in its life; it only moves down this list."""

    STARTING = "starting"
    """The process is being made, or runs the script up to its training loop."""
    READY = "ready"
    """The model is built; it waits for a view with a seat for it."""
    MEMBER = "member"
    """It has entered a view and holds the job's state."""
    DONE = "done"
    """It has trained to the end."""
    GONE = "gone"
    """Its process is no more, or is not listened to any more."""


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """What a worker says of itself, whole, each time."""

    worker: int
    pid: int
    number: int
    """Grows by one with each status of this worker."""
    phase: Phase
    generation: int = 0
    """The view that it has entered."""
    step: int = -1
    """Steps committed; -1 before it has any state."""
    at: float = 0.0
    """When it committed that step, by a clock of its own; 0: it does not say."""
    virtual_workers: int = 0
    total_steps: int | None = None
    """Steps until the end, the whole run's; None: not known."""
    steps_per_epoch: int | None = None
    definition: str = ""
    """The marks of what defines the bits; a worker with others may not join."""
    address: str = ""
    """`HOST:PORT` of the store that others may meet at, where workers are on several hosts."""
    busy_s: tuple[float, ...] = ()
    """Seconds of its own work in the newest steps, oldest first, ending with `step`; waiting for others not counted."""
    metrics: dict[str, float | None] = {}
    """The newest logged means, from the worker of virtual rank 0; None: one that is not finite."""
    pause_s: float = 0.0
    """From its last commit in the view before to its first in this one; 0 until then."""
    checkpoint: int = 0
    """The highest checkpoint request that it has carried out."""
    keeps: bool = True
    """Its script keeps checkpoints; if not, there is no place to write one to."""
    preempted: bool = False
    """It was told (SIGTERM) to give its device back."""
    digest: str = ""
    """With DONE: digest of the final state."""
    error: str = ""
    """A sentence, if the script ended by an error of its own; such an error ends the job."""
    factor: int = 0
    """Hybrid scaling: the batch factor that it trains with; 0 before it has any state."""
    broken: int = 0
    """The generation whose group failed under it (or could not be connected) while no newer view has come: the master
    makes a new view of the same workers. 0: none."""
    notice: int = 0
    """The number of the newest notice that it has taken; the agent repeats a newer one until it has."""
    exit_code: int | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag="notice"):
    """What an agent tells one of its workers, whole, each time."""

    number: int
    view: View | None = None
    """The newest view that the worker has a seat in or leaves by."""
    released: bool = False
    """It may end now: nobody needs its state any more."""
    stop: bool = False
    """The job stops at the next step boundary (with a checkpoint, if the script keeps some)."""
    checkpoint: int = 0
    """Write a checkpoint at the next boundary if this is higher than the last one carried out."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is to exist on an agent's node."""

    worker: int
    slot: int
    """The device slot on that node."""
    notice: Notice
    """What to tell it; its number is the master's."""


class Orders(msgspec.Struct, frozen=True, kw_only=True, tag="orders"):
    """What the master wants of one agent. A worker that is not listed is to be killed."""

    fence: int
    """The master's term: grows with each new master. Orders of an older term are refused."""
    number: int
    """Grows within a term."""
    agent: str
    incarnation: str = ""
    """The agent's incarnation that they are made for: one that was started again refuses its predecessor's."""
    workers: tuple[WorkerOrder, ...] = ()
    end: str = ""
    """Not empty: the job is over, with this outcome (`done`, `failed`, `stopped`); let everything go."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What an agent knows, whole, each time."""

    agent: str
    incarnation: str
    """Another one after the agent itself was started again."""
    number: int
    host: str
    slots: int
    workers: tuple[Status, ...] = ()
    """All that it has or had; one that has ended is `GONE`, with how in `error` (empty: lost) and `exit_code`."""
    fence: int = 0
    """The newest orders that it has carried out."""
    orders: int = 0


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """A person's or a controller's wish. Asked again with the same id it has one effect and one answer."""

    id: str
    what: str
    """`scale_out`, `scale_in`, `scale`, `migrate`, `place`, `profile`, `checkpoint`, `status`, `stop`."""
    values: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """How it went."""

    id: str
    ok: bool
    text: str
    """One sentence."""
    values: dict[str, Any] = {}
    failed: bool = False
    """Where it is not ok: it was tried, or was to be. Else it was refused, and nothing has changed."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of events.jsonl."""

    kind: str
    values: dict[str, Any] = {}
