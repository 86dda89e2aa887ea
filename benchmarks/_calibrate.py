"""Jobs on emulated accelerators, and what they and their changes take when nobody compares anything.

Every kind of job at 1, 2 and 4 workers; starts, growth, shrinking and ends, from the jobs' own logs.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from _cluster import Served
from _common import progress
from _joblog import Stretch, end_of, everything, grows_of, log_of, pauses_of, shrinks_of, start_of, stretches

from melodeon.client import Cluster
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.service import JobInfo

SCRIPT = Path(__file__).parent / "live" / "device.py"
SIZES = (1, 2, 4)
LEAST_S = 8.0
"""How long every size is measured at least."""
LOOK_S = 0.2
LONGEST_S = 400.0
"""Far more than a job here takes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job: how long its device takes for a micro-batch, of which a step has four, and for a step besides."""

    micro_s: float
    step_s: float = 0.0

    @property
    def run(self) -> list[str]:
        """Its command."""
        return [str(SCRIPT), "--micro-s", str(self.micro_s), "--step-s", str(self.step_s)]


KINDS = {"even": Kind(0.1, 0.05), "fair": Kind(0.1, 0.1), "bound": Kind(0.06, 0.2)}
"""Alike on one worker, and told apart by what they gain from more: a policy need not choose between equals."""
Curve = Mapping[int, float]
"""Steps a second by workers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job of the trace."""

    at_s: float
    kind: str
    steps: int
    workers: str
    deadline_s: float | None = None
    soft: bool = False

    def file(self, number: int, curve: Curve) -> dict[str, object]:
        """What is submitted."""
        made: dict[str, object] = {
            "name": f"j{number:02d}-{self.kind}",
            "run": KINDS[self.kind].run,
            "workdir": str(SCRIPT.parent),
            "virtual_workers": 4,
            "workers": self.workers,
            "steps": self.steps,
            "curve": {str(size): rate for size, rate in curve.items()},
        }
        if self.deadline_s is not None:
            made |= {"deadline": f"{self.deadline_s:g}s", "on_miss": "soft" if self.soft else "reject"}
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a calibration found."""

    curves: Mapping[str, Curve]
    starts_s: tuple[float, ...]
    """From being given devices to the first step's beginning."""
    grows_s: tuple[float, ...]
    """From being asked to take more devices to the last step without them."""
    shrinks_s: tuple[float, ...]
    """From being given fewer devices to the end of the workers on the others."""
    pauses_s: tuple[float, ...]
    """Of changes, less the step that is made meanwhile."""
    ends_s: tuple[float, ...]
    """From the last step to the controller's word that it is over."""

    @property
    def overheads(self) -> Overheads:
        """As the simulator takes them: medians."""
        return Overheads(
            default=_flat(median(self.pauses_s)),
            start=_flat(median(self.starts_s)),
            first_start=True,
            grow_s=median(self.grows_s),
            shrink_s=median(self.shrinks_s),
            end_s=median(self.ends_s),
        )


def _flat(seconds: float) -> Pause:
    return Pause(base_s=seconds, large_s=seconds, connect_s=0.0)


def calibrate(served: Served) -> Measured:
    """Measure; takes about a minute."""
    client = served.client
    curves = {name: dict.fromkeys(SIZES, 1.0) for name in KINDS}
    entries = [Entry(0.0, name, 100_000, "1-4") for name in KINDS]
    jobs = [client.submit(entry.file(number, curves[entry.kind])).job.id for number, entry in enumerate(entries)]
    for job in jobs:
        _until(client, job, "training")
    for turn in range(len(SIZES)):
        sizes = {job: SIZES[(place + turn) % len(SIZES)] for place, job in enumerate(jobs)}
        for job, size in sorted(sizes.items(), key=lambda item: item[1]):
            client.scale(job, size)  # whoever shrinks first: nobody is to be stopped
        for job, size in sizes.items():
            _until_measured(client.job(job), size)
    progress(f"measured {len(jobs)} kinds of job at {', '.join(map(str, SIZES))} workers")
    for job in jobs:
        client.scale(job, 1)
    for job in jobs:
        _until_measured(client.job(job), 1)  # nobody waits for devices that others are giving back
    short = []
    for number, size in enumerate(SIZES):
        made = Entry(0.0, "even", 10, str(size)).file(number, {size: 1.0})
        short.append(client.submit(made).job.id)
        client.wait(short[-1], LONGEST_S)
    infos = {job: client.job(job) for job in (*jobs, *short)}
    for job in jobs:
        client.cancel(job)
    for job in jobs:
        client.wait(job, LONGEST_S)
    log = everything(client)
    measured = Measured(
        curves={name: _curve(stretches(log_of(infos[job]))) for name, job in zip(KINDS, jobs, strict=True)},
        starts_s=tuple(start_of(log, infos[job]) for job in short),
        grows_s=tuple(s for job in jobs for s in grows_of(log_of(infos[job]))),
        shrinks_s=tuple(s for job in jobs for s in shrinks_of(log, infos[job])),
        pauses_s=tuple(s for job in jobs for s in pauses_of(infos[job])),
        ends_s=tuple(end_of(log, infos[job]) for job in short),
    )
    progress(f"curves {measured.curves}")
    for name in ("starts_s", "grows_s", "shrinks_s", "pauses_s", "ends_s"):
        progress(f"{name}: {', '.join(f'{s:.2f}' for s in getattr(measured, name))}")
    return measured


def _curve(made: Sequence[Stretch]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for stretch in made:
        if stretch.rate and stretch.seconds >= LEAST_S:
            found.setdefault(stretch.workers, []).append(stretch.rate)
    return {size: round(median(found[size]), 4) for size in SIZES}


def _until_measured(job: JobInfo, size: int) -> None:
    """Wait until a job has trained at a size for long enough."""
    end = time.monotonic() + LONGEST_S
    while not ((made := stretches(log_of(job))) and made[-1].workers == size and made[-1].seconds >= LEAST_S):
        if time.monotonic() > end:
            raise SystemExit(f"job {job.id} did not train on {size} workers within {LONGEST_S:.0f} s")
        pace(LOOK_S)


def _until(client: Cluster, job: str, kind: str) -> None:
    """Wait for a line of the log."""
    for event in client.follow_events(0):
        if event.job == job and event.kind == kind:
            return
        if event.job == job and event.kind == "ended":
            raise SystemExit(f"job {job} ended before it was {kind}: {event.text}")


def pace(seconds: float) -> None:
    """Let so much time pass."""
    threading.Event().wait(seconds)  # never set: the time itself is wanted
