"""A job of the cluster as a policy is told of it: how much work, how fast at which size, by when.

What is not known is filled in: a job whose speed nobody has measured gets a curve of which only the shape counts, one
whose length is not known yet is taken to last an hour. Jobs with a promised deadline are not judged on such guesses.
"""

from collections.abc import Collection
from typing import Any

from melodeon.control.curves import NOTHING, Known, guessed, scaling, sizes
from melodeon.control.job import Job
from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Curves, Goal, JobId, JobSpec
from melodeon.core.spec import FARTHEST_S, Spec, read_spec
from melodeon.core.text import counted

ASSUMED_S = 3600.0
"""How long a job is taken to last on its fewest workers while nobody knows its number of steps."""
UNKNOWN = Known()


def types_of(spec: Spec, cluster: Cluster) -> tuple[DeviceType, ...]:
    """The types of device that it may run on, in its own order."""
    wanted = [DeviceType(kind) for kind in spec.devices] or list(cluster.types)
    return tuple(kind for kind in wanted if kind in cluster.types)


def bounds(spec: Spec, cluster: Cluster, kind: DeviceType, known: Known) -> tuple[int, int]:
    """How few and how many workers it may have on one type.

    While nobody has said how many virtual workers it is made of, nor how many workers it may have, it gets its fewest:
    more than virtual workers could not start.
    """
    have = sum(node.num_devices for node in cluster.nodes if node.device_type == kind)
    virtual = spec.virtual_workers or known.virtual_workers
    most = spec.max_workers or virtual or spec.min_workers
    return spec.min_workers, min(have, most, virtual or most)


def check_fits(spec: Spec, cluster: Cluster) -> None:
    """Refuse a job that could never run here, whatever else does."""
    kinds = types_of(spec, cluster)
    if not kinds:
        raise UsageError(
            f"devices: {', '.join(spec.devices)} are not in this cluster, which has {', '.join(cluster.types)}"
        )
    most = max(bounds(spec, cluster, kind, UNKNOWN)[1] for kind in kinds)
    if spec.min_workers > most:
        raise UsageError(
            f"workers: it needs at least {spec.min_workers} and the cluster has {counted(most, 'device')} that it may "
            "use: allow fewer"
        )


def length_of(job: Job, spec: Spec, known: Known) -> int | None:
    """Its number of steps; None: not known yet."""
    if job.total_steps is not None:
        return job.total_steps  # what its workers say: a script may end before the steps that its file allows
    if spec.steps is not None:
        return spec.steps
    per_epoch = job.steps_per_epoch or known.steps_per_epoch
    return spec.epochs * per_epoch if spec.epochs and per_epoch else None


def known_curves(spec: Spec, known: Known, cluster: Cluster) -> Curves:
    """Its scaling curves on the types where something is known of its speed."""
    found = []
    for kind in types_of(spec, cluster):
        least, most = bounds(spec, cluster, kind, known)
        if most >= least:
            curve = known.by_type.get(kind, NOTHING)
            made = scaling(curve, spec.curve, least, most, promised=spec.goal is Goal.HARD)
            if made is not None:
                found.append((kind, made))
    return tuple(found)


def must_measure(job: Job, spec: Spec, known: Known, cluster: Cluster) -> bool:
    """Whether it cannot be judged before its speed and length are known."""
    if spec.goal is not Goal.HARD:
        return False
    return length_of(job, spec, known) is None or not known_curves(spec, known, cluster)


def lease_sizes(spec: Spec, cluster: Cluster, known: Known) -> tuple[int, ...]:
    """The sizes at which it may be measured, largest first: up to a quarter of the devices, or its fewest workers."""
    found: set[int] = set()
    for kind in types_of(spec, cluster):
        least, most = bounds(spec, cluster, kind, known)
        quarter = max(least, min(most, cluster.count(kind) // 4))
        found |= {size for size in sizes(least, quarter) if size == least or not size & (size - 1)}
    return tuple(sorted(found, reverse=True))


class SpecBook:
    """What policies are told of each job. The same value again while nothing of it has changed, which they look at."""

    def __init__(self, cluster: Cluster, margin: float) -> None:
        self._cluster, self._margin = cluster, margin
        self._read: dict[str, tuple[int, Spec]] = {}
        self._told: dict[str, tuple[tuple[int, Known, float, float], JobSpec]] = {}
        self.waiting: dict[str, tuple[Job, Known, JobState]] = {}
        """Jobs that hold nothing look the same in every round, until something happens to them."""

    def spec(self, job: Job) -> Spec:
        """The job's file, read."""
        found = self._read.get(job.id)
        if found is None or found[0] != job.version:
            found = self._read[job.id] = (job.version, read_spec(job.spec))
        return found[1]

    def note(self, job: Job, spec: Spec) -> None:
        """The job's file was just read."""
        self._read[job.id] = (job.version, spec)

    def told(self, job: Job, known: Known, origin: float) -> JobSpec:
        """The job as a policy sees it."""
        kept = self._told.get(job.id)
        if kept is not None:
            (version, knew, window_from, since), made = kept
            if (version, window_from, since) == (job.version, job.window_from, origin) and knew is known:
                return made
        made = self._make(job, self.spec(job), known, origin)
        self._told[job.id] = ((job.version, known, job.window_from, origin), made)
        return made

    def branch(self) -> "SpecBook":
        """A copy to try something with."""
        other = SpecBook(self._cluster, self._margin)
        other._read, other._told, other.waiting = dict(self._read), dict(self._told), dict(self.waiting)
        return other

    def forget(self, keep: Collection[str]) -> None:
        """Drop what is kept of jobs that are over."""
        tables: tuple[dict[str, Any], ...] = (self._read, self._told, self.waiting)
        for table in tables:
            for name in [name for name in table if name not in keep]:
                del table[name]

    def _make(self, job: Job, spec: Spec, known: Known, origin: float) -> JobSpec:
        cluster = self._cluster
        kinds = types_of(spec, cluster) or cluster.types[:1]
        curves = known_curves(spec, known, cluster)
        if not curves:
            limits = [(kind, *bounds(spec, cluster, kind, known)) for kind in kinds]
            curves = tuple((kind, guessed(least, max(least, most))) for kind, least, most in limits)
        steps = length_of(job, spec, known)
        most = max(max(spec.min_workers, bounds(spec, cluster, kind, known)[1]) for kind in kinds)
        deadline_s = None if job.deadline_at is None else self.promised(job) - origin
        return JobSpec(
            id=JobId(job.id),
            submit_s=job.submitted_at - origin,
            iterations=steps or max(1.0, ASSUMED_S * curves[0][1].rate(spec.min_workers)),
            curves=curves,
            deadline_s=deadline_s,
            goal=spec.goal,
            requested_workers=min(most, spec.max_workers or spec.min_workers),
            min_workers=spec.min_workers,
            max_workers=most,
            user=job.user,
            weight=spec.priority,
            virtual_workers=spec.virtual_workers,
        )

    def promised(self, job: Job) -> float:
        """Its deadline less the margin: what is promised shall hold although speeds vary."""
        assert job.deadline_at is not None, "only jobs with a deadline are promised anything"
        return job.deadline_at - self._margin * (job.deadline_at - job.window_from)

    def quoted(self, found_at: float, now: float) -> float | None:
        """The deadline to write so that the promise is `found_at`, with a little time to write it; None: too far."""
        window = (found_at - now) / (1 - self._margin) * 1.01 + 2.0
        return now + window if window < FARTHEST_S else None
