"""Traces of clusters that ran: they say when a job came, how long it ran and on how many devices, and little else.

    model, batch size   drawn from the throughput tables, any measured setting as likely as any other
    iterations          duration x that setting's rate on the devices that the job requested, unless the trace says
    deadline            tightness x duration after the submission, tightness drawn from [0.5, 1.5]

This is how ElasticFlow's evaluation made its traces. Without tables curves are linear (see `linear`). A job's draws
come from the seed and its own name, so leaving out other rows changes nothing for it. Time 0 is the first submission.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from melodeon.core.jobs import JobId, JobSpec
from melodeon.sim.traces.generate import TIGHTNESS, made_job
from melodeon.sim.traces.rows import Row, Trace, collect
from melodeon.sim.traces.throughputs import Throughputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A job as its cluster wrote it down."""

    id: JobId
    submit_s: float
    """On the trace's own clock."""
    duration_s: float
    workers: int
    iterations: float | None = None
    model: str = ""
    user: str = ""


def recorded_trace(
    name: str,
    rows: Iterable[Row],
    parse: Callable[[Row], Recorded | None],
    throughputs: Throughputs,
    *,
    seed: int = 0,
    skip_bad: bool = False,
) -> Trace:
    """Every recorded job with what it lacks drawn from the seed, in order of submission."""
    read = collect(rows, parse, skip_bad=skip_bad)
    first_s = min((job.submit_s for job in read.found), default=0.0)
    jobs = (_job(job, first_s, throughputs, seed) for job in read.found)
    return Trace(name, tuple(sorted(jobs, key=lambda job: job.submit_s)), read.bad, read.num_other)


def _job(job: Recorded, first_s: float, throughputs: Throughputs, seed: int) -> JobSpec:
    return made_job(
        random.Random(f"{seed} {job.id}"),
        throughputs,
        job=job.id,
        submit_s=job.submit_s - first_s,
        duration_s=job.duration_s,
        workers=job.workers,
        tightness=TIGHTNESS,
        iterations=job.iterations,
        model=job.model,
        user=job.user,
    )
