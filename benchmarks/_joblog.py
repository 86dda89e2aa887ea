"""What the cluster's log and the jobs' own logs say about the time that changes took."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from melodeon.client import Cluster
from melodeon.core.service import EventInfo, JobInfo

RUN_IN_S = 2.5
"""Of a stretch, so long is left out of its rate: processes start and end meanwhile, its own and others'."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time with the same workers."""

    workers: int
    view_at: float
    """When its first step was done (of the first: when that began)."""
    pause_s: float
    """Between the last step before it and its first."""
    steps: tuple[tuple[float, int], ...]
    """(moment, step) of those that were noted."""

    @property
    def steady(self) -> tuple[tuple[float, int], ...]:
        """The steps after the first moment, in which new workers run in."""
        return tuple((at, step) for at, step in self.steps if at >= self.view_at + RUN_IN_S)

    @property
    def seconds(self) -> float:
        """Between the first and the last of these."""
        return self.steady[-1][0] - self.steady[0][0] if self.steady else 0.0

    @property
    def rate(self) -> float | None:
        """Steps a second."""
        return (self.steady[-1][1] - self.steady[0][1]) / self.seconds if self.seconds else None


def stretches(lines: Sequence[str]) -> list[Stretch]:
    """The stretches of a job, from its `events.jsonl`."""
    found: list[tuple[int, float, float, list[tuple[float, int]]]] = []
    for line in lines:
        event = json.loads(line)
        at = datetime.fromisoformat(event["at"]).timestamp()
        if event["kind"] == "view":
            pause_s = max(event["pauses"].values(), default=0.0)
            found.append((len(event["workers"]), at, pause_s, []))
        elif event["kind"] == "step" and found and (not found[-1][3] or event["step"] > found[-1][3][-1][1]):
            found[-1][3].append((at, event["step"]))
    return [Stretch(workers, at, pause_s, tuple(steps)) for workers, at, pause_s, steps in found]


def last_step_at(lines: Sequence[str]) -> float:
    """When the last step was noted; a view may be told only after it."""
    return [at for stretch in stretches(lines) for at, _ in stretch.steps][-1]


def log_of(job: JobInfo) -> list[str]:
    """The lines of its last incarnation."""
    return (Path(job.run_dir) / "events.jsonl").read_text().splitlines()


def everything(client: Cluster) -> list[EventInfo]:
    """The cluster's whole log."""
    found: list[EventInfo] = []
    while page := client.events(found[-1].seq if found else 0, limit=1000):
        found += page
    return found


def moments(log: Sequence[EventInfo], kind: str, job: str) -> list[EventInfo]:
    """The lines of one kind about one job."""
    return [event for event in log if event.kind == kind and event.job == job]


def workers_of(planned: EventInfo) -> int:
    """What a plan gives."""
    return sum(count for _, count in planned.values["counts"])


def start_of(log: Sequence[EventInfo], job: JobInfo) -> float:
    """Seconds from its first devices to its first step's beginning."""
    return stretches(log_of(job))[0].view_at - moments(log, "planned", job.id)[0].at


def end_of(log: Sequence[EventInfo], job: JobInfo) -> float:
    """Seconds from its last step to its end."""
    return moments(log, "ended", job.id)[-1].at - last_step_at(log_of(job))


def grows_of(lines: Sequence[str]) -> Iterator[float]:
    """Seconds from each question for more workers to the last step without them."""
    asked: float | None = None
    before = 0
    for event in map(json.loads, lines):
        at = datetime.fromisoformat(event["at"]).timestamp()
        if event["kind"] == "ask" and event["what"] == "place":
            asked = at
        elif event["kind"] == "view":
            if asked is not None and len(event["workers"]) > before:
                yield at - max(event["pauses"].values(), default=0.0) - asked
            asked, before = None, len(event["workers"])


def shrinks_of(log: Sequence[EventInfo], job: JobInfo) -> Iterator[float]:
    """Seconds from each plan for fewer workers to the end of the last of the others."""
    gone = [
        datetime.fromisoformat(event["at"]).timestamp()
        for event in map(json.loads, log_of(job))
        if event["kind"] == "worker_gone"
    ]
    plans = moments(log, "planned", job.id)
    for before, planned, after in zip(plans, plans[1:], [*plans[2:], None], strict=False):
        left = [at for at in gone if planned.at <= at and (after is None or at < after.at)]
        if workers_of(planned) < workers_of(before) and left:
            yield max(left) - planned.at


def pauses_of(job: JobInfo) -> Iterator[float]:
    """Seconds of each change beyond the step that is made meanwhile."""
    for stretch in stretches(log_of(job))[1:]:
        if stretch.rate:
            yield max(0.0, stretch.pause_s - 1 / stretch.rate)
