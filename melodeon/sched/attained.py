"""Tiresias' queues: jobs sink as the device-seconds that they have used pass thresholds; starving jobs come back up.

Kept as values: a job's standing says from which service and which moment on it is counted, so that a promoted job
starts again at nothing in both.
"""

from bisect import bisect_right
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.sched.gang import asked

SETTLE_S = 1e-3
"""A job is looked at again a little after it reached a threshold, so that rounding does not bring it back to it."""


class Standing(NamedTuple):
    """From where a job is counted."""

    service_s: float
    since_s: float


Standings = Mapping[JobId, Standing]
"""Only jobs that were promoted; all others are counted from 0 and their submission."""


def check_queues(thresholds_s: tuple[float, ...], promote: float | None) -> None:
    """Queues need limits that ascend, and somebody who waits a while before it is promoted."""
    numbers = isinstance(thresholds_s, tuple) and all(isinstance(t, int | float) and isfinite(t) for t in thresholds_s)
    if not numbers or list(thresholds_s) != sorted(thresholds_s) or not all(t > 0 for t in thresholds_s):
        raise UsageError(
            f"thresholds_s={thresholds_s} cannot be: they are numbers above 0 that ascend, written 3250+7200"
        )
    if promote is not None and not promote > 0:
        raise UsageError(f"promote={promote} must be above 0: it is how many times as long as it ran a job has waited")


class Queues(NamedTuple):
    """Who stands where in this round."""

    thresholds_s: tuple[float, ...]
    standings: Standings

    def service_s(self, job: JobState) -> float:
        """Device-seconds that count."""
        mark = self.standings.get(job.spec.id)
        return job.service_s - (mark.service_s if mark else 0.0)

    def of(self, job: JobState) -> int:
        """The job's queue; 0 goes first."""
        return bisect_right(self.thresholds_s, self.service_s(job))

    def order(self, job: JobState) -> tuple[int, float]:
        """Sort key: the queue, and within it the job that came first."""
        return self.of(job), job.spec.submit_s

    def sinks_at(self, job: JobState, now_s: float, workers: int) -> float:
        """When a job that holds so many devices sinks to the next queue; infinite in the last one."""
        queue = self.of(job)
        if queue == len(self.thresholds_s):
            return float("inf")
        return now_s + (self.thresholds_s[queue] - self.service_s(job)) / workers + SETTLE_S

    def rises_at(self, job: JobState, now_s: float, promote: float | None) -> float:
        """When a job that waits has waited long enough to go back to the first queue; infinite: it never does."""
        mark = self.standings.get(job.spec.id) or Standing(0.0, job.spec.submit_s)
        ran_s = _ran_s(job, mark)
        if promote is None or ran_s <= 0:
            return float("inf")
        at_s = mark.since_s + (1 + promote) * ran_s + SETTLE_S
        # One that is stopped just now although it has waited so long is looked at when something happens.
        return at_s if at_s > now_s else float("inf")


def _ran_s(job: JobState, mark: Standing) -> float:
    return (job.service_s - mark.service_s) / asked(job.spec)


def queues(view: ClusterView, state: object, thresholds_s: tuple[float, ...], promote: float | None) -> Queues:
    """The queues now: a waiting job that has waited `promote` times as long as it ran goes back to the first."""
    before: Standings = state if isinstance(state, Mapping) else {}
    found = {job.spec.id: before[job.spec.id] for job in view.admitted if job.spec.id in before}
    if promote is not None:
        for job in view.admitted:
            mark = found.get(job.spec.id, Standing(0.0, job.spec.submit_s))
            ran_s = _ran_s(job, mark)
            waited_s = view.now_s - mark.since_s - ran_s
            if not job.counts and ran_s > 0 and waited_s > promote * ran_s:
                found[job.spec.id] = Standing(job.service_s, view.now_s)
    return Queues(thresholds_s, found)
