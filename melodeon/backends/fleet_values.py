"""The seam between the controller and where jobs run: what it may ask of a fleet, and what a fleet says.

    launch(order) -> Seen, Seen, ...  place(...)  Seen ...  stop(...)  Seen(ended)

Every call may be made again: a fleet compares what is asked with what is, so a controller that died between asking and
hearing asks once more and nothing happens twice. An incarnation is one start of a job; its folder is its identity.
"""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from melodeon.core.service import LogChunk

Slots = Mapping[str, tuple[int, ...]]
"""Device slots by node, ascending; without empty nodes."""

How = Literal["done", "stopped", "failed", "lost", "unstarted"]
"""How an incarnation ended.

`done`: trained to its end. `stopped`: asked to, with a checkpoint. `failed`: by its own error; starting it again would
not help. `lost`: all of its workers, or its launcher, are gone; it can go on from its checkpoint. `unstarted`: its
launcher never made the folder, and never will (the folder was claimed).
"""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How one incarnation ended."""

    status: How
    exit_code: int | None = None
    reason: str = ""
    """One sentence for people."""
    digest: str | None = None
    """Of the final state, where it came to its end."""
    step: int | None = None
    """The last committed step that was heard of."""
    at: float | None = None
    """When, by the machine's clock; None where its launcher could not say."""


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All that a launcher needs to start one incarnation; written as `JOB_DIR/launch-<incarnation>.json`."""

    job: str
    incarnation: int
    job_dir: str
    """Absolute: STATE/jobs/<job>."""
    argv: tuple[str, ...]
    """A script and its arguments, or `-m module ...`."""
    env: dict[str, str] = {}
    workdir: str = "."
    """Absolute."""
    user: str = ""
    """Who submitted it."""
    slots: dict[str, tuple[int, ...]]
    """Where its first workers go."""
    kinds: dict[str, str] = {}
    """Device type of every node of the cluster."""
    capacity: dict[str, int] = {}
    """Devices of every node of the cluster: any of them may be used later."""
    min_workers: int = 1
    max_workers: int | None = None
    virtual_workers: int | None = None
    steps: int | None = None
    epochs: int | None = None
    until: str | None = None
    order: str | None = None
    determinism: str = "D1"
    threads: int = 1
    checkpoint_every: int | None = None
    memory: int | None = None
    """Bytes of address space for each process; None: no limit."""
    restarts: int = 3
    """Lost workers that are replaced."""
    cuda: dict[str, tuple[str, ...]] = {}
    """CUDA devices (index or UUID) of the nodes that have some; all other nodes are CPU slots. Set by the fleet."""
    run_as: str = ""
    """The operating system's user that it runs as; empty: the controller's. Set by the fleet."""
    preload: tuple[str, ...] | None = None
    """Modules to import before workers are made; None: what training needs."""
    zygote: str = ""
    """The name of a process that its nursery can be forked of; empty: there is none. Set by the fleet."""

    @property
    def name(self) -> str:
        """`<job>.<incarnation>`: the run's id, here and in the registry of running jobs."""
        return f"{self.job}.{self.incarnation}"

    @property
    def run_dir(self) -> str:
        """The run's folder; whoever makes it owns the incarnation."""
        return f"{self.job_dir}/{self.name}"

    @property
    def checkpoint_dir(self) -> str:
        """One for all incarnations."""
        return f"{self.job_dir}/checkpoints"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be of one job; driven towards again and again until it is so, or the job has ended."""

    job: str
    incarnation: int
    order: LaunchOrder
    slots: dict[str, tuple[int, ...]] | None
    """The devices to have; None: it shall not run now (write the state, and stop)."""
    end: bool = False
    """Stop for good."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is, of one incarnation."""

    job: str
    incarnation: int
    alive: bool
    """Its launcher runs."""
    training: bool = False
    """Its workers have begun, and it is not between two views for long."""
    ended: Ended | None = None
    slots: dict[str, tuple[int, ...]] = {}
    """The devices that its workers are on."""
    step: int = 0
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    virtual_workers: int | None = None
    """Of which it is made: no more workers than this can be used."""
    rates: dict[int, float] = {}
    """Steps a second by number of workers: a running median of what was measured while it trains."""
    metrics: dict[str, float | None] = {}
    """The newest logged means; None: one that is not finite."""
    pause_s: float = 0.0
    """Seconds without progress in changes of its workers, since this incarnation began."""
    views: int = 0
    """How often its workers changed."""
    stuck: str = ""
    """One sentence, when it needs somebody to look."""
    warnings: tuple[str, ...] = ()
    """Sentences of its workers for whoever wrote the job, each once."""


class FleetLike(Protocol):
    """Where jobs run. Calls that cannot be kept raise from the error tree; `Unreachable` may be tried again."""

    async def launch(self, order: LaunchOrder) -> None:
        """Start an incarnation; one that was started already is left alone."""
        ...

    async def adopt(self, job_dir: Path, job: str, incarnation: int) -> Seen:
        """What has become of an incarnation that may have been started; one that was not is claimed (`unstarted`)."""
        ...

    async def place(self, job: str, incarnation: int, slots: Slots) -> None:
        """Have workers on exactly these devices; returns when it is so, or raises."""
        ...

    async def stop(self, job: str, incarnation: int) -> None:
        """Write a checkpoint and end; `Seen.ended` follows."""
        ...

    async def kill(self, job: str, incarnation: int) -> None:
        """End at once, whatever is lost; `Seen.ended` follows."""
        ...

    async def profile(self, job: str, incarnation: int, smallest: int, largest: int) -> dict[int, float]:
        """Measure steps a second at the sizes smallest, twice that, ... within the devices that it was last given."""
        ...

    def observe(self) -> AsyncIterator[Seen]:
        """Whatever changes, of every incarnation that was launched or adopted; while training at least every second."""
        ...

    def logs(self, job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
        """A piece of a job's output over all incarnations, from an opaque mark; "" is the beginning."""
        ...

    async def close(self) -> None:
        """Let go of everything; jobs go on."""
        ...
