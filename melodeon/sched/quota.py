"""Per-user quotas, asked before the policy: nobody can fill the cluster by submitting more, sooner or tighter."""

from collections.abc import Mapping
from dataclasses import dataclass

from melodeon.core.clusterview import JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId
from melodeon.core.text import counted

DAY_S = 86_400.0
Accepted = Mapping[str, tuple[float, ...]]
"""By user: when each job of the last day was accepted."""
MAY_HAVE = "and may have"
"""In every refusal: a job keeps why it was turned away as a sentence only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits for one user; None: no limit."""

    jobs_per_day: int | None = None
    active_jobs: int | None = None
    """Admitted and unfinished at one time."""

    def __post_init__(self) -> None:
        for name in ("jobs_per_day", "active_jobs"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise UsageError(
                    f"quota {name}={limit} must not be negative: use 0 to shut a user out, or leave it out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The limits of every user."""

    default: Quota = Quota()
    by_user: tuple[tuple[str, Quota], ...] = ()

    def of(self, user: str) -> Quota:
        """The limits that hold for a user."""
        return dict(self.by_user).get(user, self.default)

    def refuse(self, job: JobState, now_s: float, jobs: Mapping[JobId, JobState], accepted: Accepted) -> str | None:
        """Why the user may not have this job as well; None: they may."""
        user = job.spec.user
        quota = self.of(user)
        if quota.active_jobs is not None:
            active = sum(1 for j in jobs.values() if j.admitted_s is not None and j.spec.user == user)
            if active >= quota.active_jobs:
                has = f"has {counted(active, 'active job')}"
                return f"user {user!r} {has} {MAY_HAVE} {quota.active_jobs}: wait until one ends"
        if quota.jobs_per_day is not None:
            today = sum(1 for when in accepted.get(user, ()) if when > now_s - DAY_S)
            if today >= quota.jobs_per_day:
                had = f"had {counted(today, 'job')} accepted in the last day"
                return f"user {user!r} {had} {MAY_HAVE} {quota.jobs_per_day}: wait until the first of them is a day ago"
        return None


def is_refusal(why: str) -> bool:
    """Whether a quota has turned a job away, so that no other deadline would help it."""
    return why.startswith("user ") and f" {MAY_HAVE} " in why


def note(accepted: Accepted, user: str, now_s: float) -> Accepted:
    """The record with one more accepted job, and without what is older than a day."""
    recent = tuple(when for when in accepted.get(user, ()) if when > now_s - DAY_S)
    return {**accepted, user: (*recent, now_s)}
