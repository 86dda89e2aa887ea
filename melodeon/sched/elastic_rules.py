"""Elan's two rules, which make a static queue elastic.

    admission   a job may start if its least is free now, or if starting it does not lengthen the mean completion time
    allocation  its least to every running job, then step by step to the job whose end one more device brings nearest

The mean completion time is foreseen by playing the allocation rule forward over the next ends, once with the newcomer
started now and once when its least becomes free. Running jobs give way down to their least; none is stopped.
"""

from dataclasses import dataclass, field

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.climbing import Climber, Given, climb, time_saved
from melodeon.sched.estimate import ladders, seconds_left

FREE_NOW = "its least was free"
SHORTENS = "its start does not lengthen the mean completion time"
RUNS = "it runs"
FORESIGHT = 12
"""So many ends are played forward; shares stay as they are after those."""
WORK = 2000
"""Fewer ends where that would be more than so many jobs to look at: a round must stay short on large clusters."""


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

    def join(self, job: JobState, reason: str) -> None:
        """From now on the job is one of those that run."""
        self.members[job.spec.id] = job
        self.reasons[job.spec.id] = reason
        self.least += self._ladder(job).levels[0]
        # What it holds is not free already; a newcomer takes its least, from the free ones first.
        self.free = max(0, self.free - (0 if job.held(self.kind) else self._ladder(job).levels[0]))

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
        jobs = [*self.members.values(), *([newcomer] if newcomer else [])]
        return self._climbed([(job, job.remaining) for job in jobs])

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

    def _climbed(self, work: list[tuple[JobState, float]]) -> dict[JobId, Given]:
        climbers: list[Climber] = []
        for job, left in work:
            ladder = self._ladder(job)
            climbers.append(Climber(job.spec.id, ladder, ladder.levels[0], ladder.rates[0], left))
        return climb(climbers, self.capacity - sum(climber.workers for climber in climbers), time_saved)

    def _shortens(self, job: JobState) -> bool:
        return self._played(job, waits=False) <= self._played(job, waits=True)

    def _played(self, newcomer: JobState, *, waits: bool) -> float:
        """Seconds to everybody's end, added up, if the newcomer starts now or else when its least becomes free."""
        running = [(job, job.remaining) for job in self.members.values()]
        if not waits:
            running.append((newcomer, newcomer.remaining))
        total = 0.0
        for _ in range(max(1, min(FORESIGHT, WORK // (len(running) + 1)))):
            given = self._climbed(running)
            rated = [(job, left, self._ladder(job).rate(given[job.spec.id].workers)) for job, left in running]
            passed_s = min((left / rate for _, left, rate in rated), default=0.0)
            total += passed_s * (len(running) + waits)
            running = [(job, left - rate * passed_s) for job, left, rate in rated if left / rate > passed_s]
            held = sum(given[job.spec.id].workers for job, _ in running)
            if waits and self.capacity - held >= self._ladder(newcomer).levels[0]:
                running.append((newcomer, newcomer.remaining))
                waits = False
        if waits:
            running.append((newcomer, newcomer.remaining))
        given = self._climbed(running)
        return total + sum(left / self._ladder(job).rate(given[job.spec.id].workers) for job, left in running)


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
