"""A job inside the simulator: progress is a function of time, so nothing is touched while nothing changes."""

from copy import copy

import msgspec

from melodeon.core.cluster import Counts, total
from melodeon.core.clusterview import JobState
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Placement

NEVER = float("inf")


class LiveJob:
    """One unfinished job."""

    __slots__ = (
        "active_at_submit",
        "admitted_s",
        "changed_s",
        "counts",
        "done",
        "effective_s",
        "end_s",
        "finish_s",
        "num_devices",
        "num_migrations",
        "num_resizes",
        "num_suspensions",
        "pause_s",
        "placement",
        "rate",
        "rate_alone",
        "resume_s",
        "service_s",
        "spec",
        "speed",
        "started_s",
        "waiting",
    )

    def __init__(self, spec: JobSpec, active_at_submit: float, end_s: float = 0.0) -> None:
        self.spec, self.end_s = spec, end_s
        self.admitted_s: float | None = None
        self.started_s: float | None = None
        self.active_at_submit = active_at_submit
        self.counts: Counts = ()
        self.placement: Placement = ()
        self.num_devices = 0
        self.rate = 0.0
        """Iterations a second while it is not paused."""
        self.rate_alone = spec.curves[0][1].rate(1)
        """That of one device alone of the type that it is on; on several types, the mean over its devices."""
        self.speed = 1.0
        self.changed_s = self.resume_s = spec.submit_s
        """`done`, `service_s` and `effective_s` are as of `changed_s`; progress goes on at `resume_s`."""
        self.done = self.service_s = self.effective_s = self.pause_s = 0.0
        self.finish_s = NEVER
        self.num_resizes = self.num_migrations = self.num_suspensions = 0
        self.waiting: JobState | None = None
        """What the policy was last told while it holds nothing: that stays true, and queues can be long."""

    def settle(self, now_s: float) -> None:
        """Bring the books up to a moment."""
        self.service_s += self.num_devices * (now_s - self.changed_s)
        running_s = now_s - self.resume_s
        if running_s > 0:
            if self.rate:
                self._progress(self.rate * running_s)
            self.resume_s = now_s
        self.changed_s = now_s

    def _progress(self, iterations: float) -> None:
        before = self.done
        self.done = min(before + iterations, self.spec.iterations)
        self.effective_s += (self.done - before) / self.rate_alone

    def hold(
        self, now_s: float, counts: Counts, placement: Placement, rate: float, pause_s: float, lead_s: float = 0.0
    ) -> None:
        """From now on it holds these devices; all goes on as it was during the lead, and it trains after the pause."""
        self.settle(now_s)
        self.waiting = None
        self.counts, self.placement, self.rate = counts, placement, rate
        self.num_devices = total(counts)
        if counts:
            self.rate_alone = _alone(self.spec, counts, self.num_devices)
        if self.end_s and now_s <= self.finish_s < NEVER and self.done >= self.spec.iterations and not lead_s:
            return  # its last step is made, and it ends when it ends
        if pause_s or lead_s:
            self.resume_s = now_s + lead_s + pause_s
            self.pause_s += pause_s
        left = self.spec.iterations - self.done
        self.finish_s = self.resume_s + left / rate + self.end_s if rate else NEVER
        if self.started_s is None and counts:
            self.started_s = now_s

    def train_on(self, now_s: float, seconds: float) -> float:
        """Book what it trains as it is for so long from now on, in advance; how long that really is."""
        self.settle(now_s)
        begins_s = max(now_s, self.resume_s)
        trained_s = min(max(0.0, now_s + seconds - begins_s), (self.spec.iterations - self.done) / self.rate)
        self._progress(self.rate * trained_s)
        return begins_s + trained_s - now_s

    def state(self, now_s: float) -> JobState:
        """What the policy sees of it."""
        if self.waiting is not None and self.waiting.admitted_s is self.admitted_s:
            return self.waiting
        service_s = self.service_s + self.num_devices * (now_s - self.changed_s)
        done, running_s, iterations = self.done, now_s - self.resume_s, self.spec.iterations
        if running_s > 0:
            done += self.rate * running_s
        if self.end_s:
            iterations -= min(1.0, iterations / 2)  # while it ends, it is still somebody who needs devices
        found = JobState(
            self.spec,
            self.admitted_s,
            done if done < iterations else iterations,
            self.counts,
            self.placement,
            self.resume_s,
            self.started_s,
            service_s,
            self.speed,
        )
        self.waiting = None if self.counts else found
        return found

    def clone(self) -> "LiveJob":
        """An independent copy."""
        return copy(self)


def _alone(spec: JobSpec, counts: Counts, num_devices: int) -> float:
    """Iterations a second of one device alone, averaged over those of a job."""
    together = 0.0
    for kind, count in counts:
        curve = spec.curve(kind)
        together += count * curve.rate(1) if curve else 0.0
    return together / num_devices


class JobOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What became of a job."""

    spec: JobSpec
    admitted: bool
    why: str
    """What it was told when it was admitted or turned away."""
    earliest_deadline_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None
    """None: turned away, or never run to its end."""
    service_s: float = 0.0
    effective_s: float = 0.0
    """Service weighed by scaling efficiency: device-seconds that devices of its types would have needed, each alone."""
    pause_s: float = 0.0
    num_resizes: int = 0
    num_migrations: int = 0
    num_suspensions: int = 0
    mean_active: float = 1.0
    """Jobs in the cluster, on average over this one's life."""

    @property
    def id(self) -> JobId:
        """The job's name."""
        return self.spec.id

    @property
    def in_time(self) -> bool:
        """Whether it had a deadline and met it."""
        return (
            self.spec.deadline_s is not None and self.finished_s is not None and self.finished_s <= self.spec.deadline_s
        )

    @property
    def jct_s(self) -> float | None:
        """From submission to the end."""
        return None if self.finished_s is None else self.finished_s - self.spec.submit_s
