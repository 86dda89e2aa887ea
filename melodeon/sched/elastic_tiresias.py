"""Elastic-Tiresias (Amoeba): Tiresias, with two rules on the plan before it is carried out.

    R1  more than `pending_limit` jobs would wait: every job outside the first queue runs on half of what it requested
    R2  nobody waits and devices are idle: they go one step at a time to the job whose throughput grows most by it

Both rules work on the plan, never on the jobs, so a job that R1 shrinks and R2 grows changes once or not at all. The
plan always starts from what jobs requested, so R1 lets go as soon as it is not needed.
"""

from dataclasses import dataclass

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.attained import Queues, check_queues, queues
from melodeon.sched.climbing import Climber, climb, relative_throughput
from melodeon.sched.estimate import Offer
from melodeon.sched.gang import Room, asked, granted
from melodeon.sched.policy import Decision

Plan = dict[JobId, Offer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTiresias:
    """The policy, with its options."""

    thresholds_s: tuple[float, ...] = (10_000.0, 200_000.0)
    """Device-seconds at which a job sinks to the next queue; these are Amoeba's."""
    promote: float | None = None
    """A job that has waited this many times as long as it ran goes back to the first queue; None: nobody does."""
    pending_limit: int = 10
    """R1 starts above this many waiting jobs. The paper names the rule, not the number."""
    scale_in: bool = True
    """R1."""
    scale_out: bool = True
    """R2."""

    def __post_init__(self) -> None:
        check_queues(self.thresholds_s, self.promote)
        if self.pending_limit < 0:
            raise UsageError(f"pending_limit={self.pending_limit} is a number of jobs: it starts at 0")

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Tiresias' plan, halved where too many wait, grown where nobody does."""
        now = queues(view, state, self.thresholds_s, self.promote)
        jobs = sorted(view.admitted, key=now.order)
        plan = _plan(view, jobs, now, halved=False)
        halved = self.scale_in and len(jobs) - len(plan) > self.pending_limit
        if halved:
            plan = _plan(view, jobs, now, halved=True)
        grown = _grown(view, jobs, plan) if self.scale_out and len(plan) == len(jobs) else plan
        shares: dict[JobId, Share] = {}
        wake_at = float("inf")
        for job in jobs:
            offer = grown.get(job.spec.id)
            if offer is None:
                wake_at = min(wake_at, now.rises_at(job, view.now_s, self.promote))
                continue
            planned = plan[job.spec.id][1]
            shrunk = halved and now.of(job) > 0 and planned < asked(job.spec)
            why = _why(job, now.of(job), planned, offer[1], shrunk=shrunk)
            shares[job.spec.id] = Share(job.spec.id, (offer,), why)
            wake_at = min(wake_at, now.sinks_at(job, view.now_s, offer[1]))
        return Decision(shares, now.standings, wake_at if wake_at < float("inf") else None)


def _plan(view: ClusterView, jobs: list[JobState], now: Queues, *, halved: bool) -> Plan:
    """Who runs, in order of the queues; jobs that do not fit are passed."""
    room = Room(view)
    plan: Plan = {}
    for job in jobs:
        wants = room.requested(job.spec)
        if halved and now.of(job) > 0:
            # Half of one worker would be none: nobody falls below its least.
            wants = [(kind, max(workers // 2, job.spec.min_workers)) for kind, workers in wants]
        counts = room.take(job, wants)
        if counts is not None:
            plan[job.spec.id] = counts[0]
        if room.is_empty:
            break
    return plan


def _grown(view: ClusterView, jobs: list[JobState], plan: Plan) -> Plan:
    """R2 on every type of device."""
    grown = dict(plan)
    for kind, count in view.cluster.capacity:
        climbers: list[Climber] = []
        for job in jobs:
            ladder, (home, workers) = job.spec.ladder(kind), plan[job.spec.id]
            if home == kind and ladder is not None:
                climbers.append(Climber(job.spec.id, ladder, workers, _rate(job, plan), job.remaining))
        free = count - sum(workers for home, workers in plan.values() if home == kind)
        for job_id, given in climb(climbers, free, relative_throughput).items():
            grown[job_id] = (kind, given.workers)
    return grown


def _rate(job: JobState, plan: Plan) -> float:
    return job.spec.rate((plan[job.spec.id],))


def _why(job: JobState, queue: int, planned: int, workers: int, *, shrunk: bool) -> str:
    why = f"queue {queue + 1} by attained service, and "
    why += f"too many jobs wait for it to have more than {planned}" if shrunk else granted(job.spec, planned)
    return f"{why}; {workers - planned} more because nobody waits" if workers > planned else why
