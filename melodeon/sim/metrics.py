"""Figures of a simulation. Jobs that were turned away and jobs that missed their deadline are counted apart.

Completion times are also given by size class, as in Amoeba's table 2: a job's size is the devices that it requests
times how long it runs on them, small below 10,000 device-seconds, large above 200,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median

from melodeon.core.cluster import Counts
from melodeon.core.jobs import JobSpec
from melodeon.sim.engine import SimResult
from melodeon.sim.live import JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One simulation in figures; None where there is nothing to measure."""

    num_jobs: int
    num_deadlines: int
    """Jobs with a hard or soft deadline."""
    num_in_time: int
    num_rejected: int
    num_missed: int
    """Admitted with a hard deadline, and not finished by it."""
    num_soft_missed: int
    num_unfinished: int
    """Admitted and never run to the end."""
    deadline_ratio: float | None
    """Deadline satisfactory ratio: in time over all jobs with a deadline, rejected ones included."""
    cluster_efficiency: float
    """ElasticFlow's equation 8 averaged over time: throughput of each device over that of one of its type alone."""
    utilisation: float
    """Device-seconds held over device-seconds there."""
    jct_mean_s: float | None
    jct_median_s: float | None
    jct_p99_s: float | None
    best_effort_jct_mean_s: float | None
    num_small: int
    num_medium: int
    num_large: int
    """Finished jobs by size class."""
    jct_small_mean_s: float | None
    jct_medium_mean_s: float | None
    jct_large_mean_s: float | None
    makespan_s: float
    """From the first submission to the last end."""
    pending_mean_s: float | None
    """From submission to the first device."""
    fairness_mean: float | None
    """Finish-time fairness: completion time over that on an even share of the cluster; above 1 is worse than even."""
    fairness_worst: float | None
    num_resizes: int
    num_migrations: int
    num_suspensions: int
    pause_s: float
    num_rounds: int
    decision_mean_ms: float
    decision_p99_ms: float
    decision_total_s: float


SMALL_BELOW, LARGE_ABOVE = 1e4, 2e5
"""Device-seconds."""


def summarize(result: SimResult) -> Summary:
    """All figures of one simulation."""
    jobs = result.outcomes
    with_deadline = [o for o in jobs if o.spec.deadline_s is not None]
    in_time = sum(o.in_time for o in with_deadline)
    late = [o for o in with_deadline if o.admitted and not o.in_time]
    finished = [o for o in jobs if o.finished_s is not None]
    jct = sorted(o.jct_s for o in finished if o.jct_s is not None)
    easy = [o.jct_s for o in finished if o.spec.deadline_s is None and o.jct_s is not None]
    fairness = [_fairness(o, result.config.cluster.capacity) for o in finished]
    decisions = sorted(result.decision_s)
    classes: dict[str, list[float]] = {"small": [], "medium": [], "large": []}
    for outcome in finished:
        classes[size_class(outcome.spec)].append(outcome.jct_s or 0.0)
    return Summary(
        num_jobs=len(jobs),
        num_deadlines=len(with_deadline),
        num_in_time=in_time,
        num_rejected=sum(not o.admitted for o in jobs),
        num_missed=sum(o.spec.goal == "hard" for o in late),
        num_soft_missed=sum(o.spec.goal == "soft" for o in late),
        num_unfinished=sum(o.admitted and o.finished_s is None for o in jobs),
        deadline_ratio=in_time / len(with_deadline) if with_deadline else None,
        cluster_efficiency=_over(sum(o.effective_s for o in jobs), result.capacity_s),
        utilisation=_over(sum(o.service_s for o in jobs), result.capacity_s),
        jct_mean_s=fmean(jct) if jct else None,
        jct_median_s=median(jct) if jct else None,
        jct_p99_s=quantile(jct, 0.99),
        best_effort_jct_mean_s=fmean(easy) if easy else None,
        num_small=len(classes["small"]),
        num_medium=len(classes["medium"]),
        num_large=len(classes["large"]),
        jct_small_mean_s=_mean(classes["small"]),
        jct_medium_mean_s=_mean(classes["medium"]),
        jct_large_mean_s=_mean(classes["large"]),
        makespan_s=result.end_s - result.start_s,
        pending_mean_s=_mean([o.started_s - o.spec.submit_s for o in jobs if o.started_s is not None]),
        fairness_mean=_mean(fairness),
        fairness_worst=max(fairness, default=None),
        num_resizes=sum(o.num_resizes for o in jobs),
        num_migrations=sum(o.num_migrations for o in jobs),
        num_suspensions=sum(o.num_suspensions for o in jobs),
        pause_s=sum(o.pause_s for o in jobs),
        num_rounds=len(decisions),
        decision_mean_ms=1e3 * (_mean(decisions) or 0.0),
        decision_p99_ms=1e3 * (quantile(decisions, 0.99) or 0.0),
        decision_total_s=sum(decisions),
    )


def size_class(spec: JobSpec) -> str:
    """`small`, `medium` or `large`."""
    alone_s = spec.duration_s or spec.iterations / spec.curves[0][1].rate(spec.requested_workers)
    size = spec.requested_workers * alone_s
    return "small" if size < SMALL_BELOW else "large" if size > LARGE_ABOVE else "medium"


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all values do not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)] if ascending else None


def _fairness(outcome: JobOutcome, capacity: Counts) -> float:
    """Themis' rho: its completion time over the one on `devices / active jobs` of its own, of the type best for it."""
    assert outcome.jct_s is not None, "only finished jobs have a completion time"
    active, devices = max(1.0, outcome.mean_active), dict(capacity)
    best = 0.0
    for (kind, curve), (_, ladder) in zip(outcome.spec.curves, outcome.spec.ladders, strict=True):
        if devices.get(kind):
            best = max(best, ladder.rate(max(1, int(devices[kind] / active))), curve.rate(1))
    return outcome.jct_s * best / outcome.spec.iterations


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
