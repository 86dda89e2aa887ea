"""Elan's two rules, which make a static queue elastic.

    admission   a job may start if its least is free now, or if starting it does not lengthen the mean completion time
    allocation  its least to every running job, then step by step to the job whose end one more device brings nearest

The mean completion time is foreseen (`foresight`) by playing the allocation rule forward over the next ends, once with
the newcomer started now and once when its least becomes free. Running jobs give way down to their least; nobody is
stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.climbing import Climber, Given, climb, time_saved
from melodeon.sched.estimate import ladders, seconds_left
from melodeon.sched.foresight import Runner, runner, seconds_to_ends

FREE_NOW = "its least was free"
SHORTENS = "its start does not lengthen the mean completion time"
RUNS = "it runs"


@dataclass(slots=True)
class Pool:
    """One type of device and the jobs that run on it in this round. Mutable, and private to one decision."""

    view: ClusterView
    kind: DeviceType
    capacity: int
    free: int
    """Devices that nobody holds or was promised."""
    members: dict[JobId, JobState] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    least: int = 0
    """What the members must have between them."""
    _runners: dict[JobId, Runner] = field(default_factory=dict)
    _given: dict[JobId, Given] | None = None
    """What the members get; None: one has joined since."""

    def join(self, job: JobState, reason: str) -> None:
        """From now on the job is one of those that run."""
        self.members[job.spec.id] = job
        self.reasons[job.spec.id] = reason
        ladder = self._ladder(job)
        self.least += ladder.levels[0]
        self._runners[job.spec.id] = runner(ladder, job.remaining)
        self._given = None
        # What it holds is not free already; a newcomer takes its least, from the free ones first.
        self.free = max(0, self.free - (0 if job.held(self.kind) else ladder.levels[0]))

    def fits(self, job: JobState) -> bool:
        """Whether everybody's least leaves room for this job's."""
        return self.least + self._ladder(job).levels[0] <= self.capacity

    def admits(self, job: JobState) -> str | None:
        """The admission rule: why the job may start; None: it waits."""
        if not self.fits(job):
            return None
        if self._ladder(job).levels[0] <= self.free:
            return FREE_NOW
        return SHORTENS if self._shortens(job) else None

    def allocation(self, newcomer: JobState | None = None) -> dict[JobId, Given]:
        """The allocation rule, perhaps with one job more."""
        if newcomer is not None:
            return self._climbed([*self.members.values(), newcomer])
        if self._given is None:
            self._given = self._climbed(self.members.values())
        return self._given

    def free_at(self, workers: int, given: dict[JobId, Given], newcomer: JobState | None = None) -> tuple[float, int]:
        """Seconds from now until so many devices are free if shares stay, and how many are free then."""
        free, after_s = self.capacity - sum(g.workers for g in given.values()), 0.0
        for left_s, released in sorted(self._ends(given, newcomer)):
            if free >= workers:
                break
            free, after_s = free + released, left_s
        return after_s, free

    def shares(self) -> dict[JobId, Share]:
        """What every member gets, and why."""
        found: dict[JobId, Share] = {}
        for job_id, given in self.allocation().items():
            why, least = self.reasons[job_id], self._ladder(self.members[job_id]).levels[0]
            if given.workers > least:
                why += f"; {given.workers - least} more, the last saving {given.gain:.0f} s for each device"
            found[job_id] = Share(job_id, ((self.kind, given.workers),), why)
        return found

    def _ladder(self, job: JobState) -> Ladder:
        ladder = job.spec.ladder(self.kind)
        assert ladder is not None, "only jobs that can run on its type are offered to a pool"
        return ladder

    def _ends(self, given: dict[JobId, Given], newcomer: JobState | None) -> list[tuple[float, int]]:
        jobs = {**self.members, newcomer.spec.id: newcomer} if newcomer else self.members
        return [(seconds_left(self.view, jobs[j], self.kind, g.workers), g.workers) for j, g in given.items()]

    def _climbed(self, jobs: Iterable[JobState]) -> dict[JobId, Given]:
        climbers: list[Climber] = []
        for job in jobs:
            ladder = self._ladder(job)
            climbers.append(Climber(job.spec.id, ladder, ladder.levels[0], ladder.rates[0], job.remaining))
        return climb(climbers, self.capacity - sum(climber.workers for climber in climbers), time_saved)

    def _shortens(self, job: JobState) -> bool:
        members = list(self._runners.values())
        newcomer = runner(self._ladder(job), job.remaining)
        now_s, later_s = (seconds_to_ends(members, newcomer, self.capacity, waits=waits) for waits in (False, True))
        return now_s <= later_s


def open_pools(view: ClusterView) -> tuple[dict[DeviceType, Pool], list[JobState]]:
    """The pools with everybody who runs, and the others in order of submission.

    A job that lost its devices with a node runs again at once where everybody's least leaves room.
    """
    held = {kind: sum(job.held(kind) for job in view.admitted) for kind in view.cluster.types}
    pools = {kind: Pool(view, kind, n, max(0, n - held[kind])) for kind, n in view.cluster.capacity}
    waiting: list[JobState] = []
    for job in view.admitted:
        kinds = [kind for kind, _ in ladders(view, job.spec)]
        home = next((kind for kind in kinds if job.held(kind) and pools[kind].fits(job)), None)
        if home is not None:
            pools[home].join(job, RUNS)
        elif kinds:
            waiting.append(job)
    stopped = [job for job in waiting if job.started_s is not None]
    for job in stopped:
        home = next((kind for kind, _ in ladders(view, job.spec) if pools[kind].fits(job)), None)
        if home is not None:
            pools[home].join(job, "it had started already")
            waiting.remove(job)
    return pools, waiting


def start(pools: dict[DeviceType, Pool], job: JobState) -> bool:
    """Let a job join the first pool that admits it; False: it waits."""
    for kind, _ in job.spec.ladders:
        pool = pools.get(kind)
        if pool is None or job.spec.ladder(kind) is None:
            continue
        reason = pool.admits(job)
        if reason is not None:
            pool.join(job, reason)
            return True
    return False
