"""A trace of short jobs played on a real cluster, and the same trace in the simulator.

    play        `melodeon serve` and real elastic jobs, submitted at the trace's moments
    simulate    the same jobs as the controller told its policy of them, at the moments at which they came in

Jobs drive emulated accelerators (`live/device.py`), so that a machine with two cores can have eight slots. Everything
else is real.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from _calibrate import LONGEST_S, SCRIPT, Curve, Entry, Kind, pace
from _cluster import Served
from _common import progress
from _joblog import everything, last_step_at, log_of, moments, stretches, workers_of
from _plans import Given

from melodeon.backends.devices import find_devices
from melodeon.control.controller import LIVE
from melodeon.control.events import Submitted
from melodeon.control.job import Job, submitted
from melodeon.control.specs import UNKNOWN, SpecBook
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Reject, Suspend
from melodeon.core.service import OVER, EventInfo, JobInfo, Phase
from melodeon.sched.profiled import Profiled
from melodeon.sched.registry import make_policy
from melodeon.sim.engine import SimConfig, SimResult, Simulation

DEVICES = 8
LONG_S = 3.0
MARGIN = 0.1
"""The service's own."""


# --- the real cluster ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened on the real cluster."""

    policy: str
    origin: float
    """The beginning of the controller's log, from which its rounds count."""
    jobs: tuple[JobInfo, ...]
    log: tuple[EventInfo, ...]
    logs: Mapping[str, Sequence[str]]
    """Lines of the jobs' own logs."""

    def given(self) -> list[Given]:
        """Who was given what."""
        mine = {job.id for job in self.jobs}
        return [
            Given(event.at - self.origin, event.job or "", workers_of(event))
            for event in self.log
            if event.kind == "planned" and event.job in mine
        ]

    def start_of(self, job: JobInfo) -> float:
        """Seconds from its first devices to its first step's beginning."""
        return stretches(self.logs[job.id])[0].view_at - moments(self.log, "planned", job.id)[0].at

    def end_of(self, job: JobInfo) -> float:
        """Seconds from its last step to its end."""
        return moments(self.log, "ended", job.id)[-1].at - last_step_at(self.logs[job.id])

    def jcts(self) -> dict[str, float]:
        """Seconds from submission to the end."""
        return {
            job.id: job.finished_at - job.submitted_at
            for job in self.jobs
            if job.phase is Phase.DONE and job.finished_at
        }


def warm_up(served: Served) -> None:
    """Start a job and see it end: the process that jobs are forked from is there afterwards, as on any cluster."""
    job = {"name": "warm", "run": Kind(0.01).run, "workdir": str(SCRIPT.parent), "virtual_workers": 4, "steps": 1}
    served.client.wait(served.client.submit(job).job.id, LONGEST_S)


def play(
    served: Served, trace: Sequence[Entry], curves: Mapping[str, Curve], *, policy: str, to_the_end: bool = True
) -> Played:
    """Submit the trace's jobs at their moments, and wait for all, or until no deadline can be met any more."""
    warm_up(served)
    client, began, ids = served.client, time.monotonic(), []
    for number, entry in enumerate(trace, 1):
        pace(max(0.0, began + entry.at_s - time.monotonic()))
        answer = client.submit(entry.file(number, curves[entry.kind]))
        ids.append(answer.job.id)
        progress(f"{time.monotonic() - began:5.1f} s  {answer.text.splitlines()[0]}")
    jobs = []
    for job, entry in zip(ids, trace, strict=True):
        due_s = began + entry.at_s + (entry.deadline_s or 0.0) + 1.0
        info = client.wait(job, LONGEST_S if to_the_end else max(0.0, due_s - time.monotonic()))
        if to_the_end and info.phase not in OVER:
            raise SystemExit(f"job {job} is {info.phase.value} after {LONGEST_S:.0f} s")
        jobs.append(info)
    log = everything(client)
    logs = {job.id: log_of(job) for job in jobs if job.phase is Phase.DONE}
    return Played(policy=policy, origin=log[0].at, jobs=tuple(jobs), log=tuple(log), logs=logs)


# --- the simulator ---


def simulate(played: Played, overheads: Overheads, curves: Mapping[str, Curve] | None = None) -> SimResult:
    """The same jobs, as the controller told its policy of them, with what it believes changes to cost.

    `curves` are other speeds than those that the jobs came with, by kind.
    """
    cluster = find_devices(devices=DEVICES).cluster
    book = SpecBook(cluster, MARGIN)
    jobs = [replace(job, spec=_with_curve(job, curves[kind_of(job)])) if curves else job for job in played.jobs]
    told = [book.told(_as_submitted(job, number), UNKNOWN, played.origin) for number, job in enumerate(jobs, 1)]
    specs = [replace(spec, model=spec.id) for spec in told]
    config = SimConfig(cluster=cluster, overheads=overheads, believed=LIVE)
    return Simulation(config, specs, Profiled(inner=make_policy(played.policy))).run().result()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStarts(Overheads):
    """Every job takes its own time to start."""

    starts: Mapping[str, float]

    def pause_s(self, model: str, workers: int, *, fresh: bool = False, held: bool = True) -> float:
        """The job's own where it has nothing."""
        if not held and model in self.starts:
            return self.starts[model]
        return Overheads.pause_s(self, model, workers, fresh=fresh, held=held)


def as_it_was(played: Played, overheads: Overheads) -> Overheads:
    """With the starts and ends of the run itself: what is left then is not the machine's mood."""
    done = [job for job in played.jobs if job.phase is Phase.DONE]
    starts = {job.id: played.start_of(job) for job in done if job.incarnation == 1}
    ends = [played.end_of(job) for job in done]
    return OwnStarts(
        default=overheads.default,
        start=overheads.start,
        first_start=True,
        grow_s=overheads.grow_s,
        end_s=median(ends),  # and no time to shrink: waiting for others to leave is in the starts
        starts=starts,
    )


def curves_as_they_were(played: Played, curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """With the speeds of the run itself, where it ran for long enough."""
    seen: dict[tuple[str, int], list[float]] = {}
    for job in played.jobs:
        for stretch in stretches(played.logs.get(job.id, ())):
            if stretch.rate and stretch.seconds >= LONG_S:
                seen.setdefault((kind_of(job), stretch.workers), []).append(stretch.rate)
    return {
        kind: {size: median(seen.get((kind, size), [rate])) for size, rate in curve.items()}
        for kind, curve in curves.items()
    }


def kind_of(job: JobInfo) -> str:
    """The kind that its name says."""
    return job.name.partition("-")[2]


def _with_curve(job: JobInfo, curve: Curve) -> dict[str, object]:
    return {**job.spec, "curve": {str(size): rate for size, rate in curve.items()}}


def _as_submitted(info: JobInfo, number: int) -> Job:
    fact = Submitted(
        job=info.id,
        number=number,
        user=info.user,
        spec=dict(info.spec),
        deadline_at=info.deadline_at,
        signature="",
        measure=False,
    )
    return submitted(info.submitted_at, fact)


def simulated_given(result: SimResult) -> list[Given]:
    """Who was given what."""
    found = []
    for logged in result.log:
        action = logged.action
        if isinstance(action, Suspend):
            found.append(Given(logged.at_s, action.job, 0))
        elif not isinstance(action, Reject):
            found.append(Given(logged.at_s, action.job, sum(block.size for block in action.placement)))
    return found
