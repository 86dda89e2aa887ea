"""Gandiva: everybody runs soon, by time slicing; not elastic unless it may grow jobs into idle devices.

Jobs stand in one queue. In every slice the first ones that fit run, each on what it requested; at its end they go to
the back. Newcomers go to the front, since a user wants to see early whether a job works. While nobody waits there are
no slices, and with `grow` jobs double on idle devices as long as that makes them faster and shrink when somebody
comes. Migration against fragmentation is the placement's work for every policy. Trades away: packing two jobs on a
device.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from melodeon.core.cluster import Counts
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.gang import Room, asked, share
from melodeon.sched.policy import Decision, check_period

Given = dict[JobId, tuple[JobState, Counts]]
MIN_GAIN = 0.05
"""Growing must make a job faster by this share, or the change is not worth its pause."""


@dataclass(frozen=True, slots=True)
class _Slices:
    queue: tuple[JobId, ...] = ()
    until_s: float = float("-inf")
    running: frozenset[JobId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva:
    """The policy, with its options."""

    slice_s: float = 60.0
    grow: bool = False

    def __post_init__(self) -> None:
        check_period("slice_s", self.slice_s)

    def decide(self, view: ClusterView, state: object) -> Decision:
        """The next slice, or within one the devices that have become free."""
        last = state if isinstance(state, _Slices) else _Slices()
        new_slice = view.now_s >= last.until_s
        jobs = {job.spec.id: job for job in view.admitted}
        known = set(last.queue)
        newcomers = [job_id for job_id in jobs if job_id not in known]
        old = [job_id for job_id in last.queue if job_id in jobs]
        ran = [job_id for job_id in old if job_id in last.running]
        if new_slice:
            queue = [*newcomers, *(job_id for job_id in old if job_id not in last.running), *ran]
            order = queue
        else:
            # Within a slice those who run stay; the others fill what is free.
            queue = [*newcomers, *old]
            order = [*ran, *(job_id for job_id in queue if job_id not in last.running)]
        room = Room(view)
        given: Given = {}
        for job_id in order:
            counts = room.take(jobs[job_id], room.requested(jobs[job_id].spec))
            if counts is not None:
                given[job_id] = (jobs[job_id], counts)
        waits = len(given) < len(jobs)
        if self.grow and not waits:
            given = _grown(view, given)
        until_s = (self._end(view, given) if new_slice else last.until_s) if waits and given else float("-inf")
        shares: dict[JobId, Share] = dict(
            share(job, counts, _why(job, counts, waits)) for job, counts in given.values()
        )
        after = _Slices(tuple(queue), until_s, frozenset(given))
        return Decision(shares, after, until_s if until_s > view.now_s else None)

    def _end(self, view: ClusterView, given: Given) -> float:
        """When a slice that begins now is over: at least half of it is training, however long jobs take to start."""
        pauses = (view.overheads.pause_s(job.spec.model, counts[0][1]) for job, counts in given.values())
        return view.now_s + max(self.slice_s, 2 * max(pauses))


def _grown(view: ClusterView, given: Given) -> Given:
    """Double where it helps most for each device, while devices are idle; who has grown already stays so if it can."""
    free = dict(view.cluster.capacity)
    for _, counts in given.values():
        free[counts[0][0]] -= counts[0][1]
    wider = dict(given)
    for job_id, (job, ((kind, count),)) in given.items():
        if count < job.held(kind) <= count + free[kind] and len(job.counts) == 1:
            free[kind] -= job.held(kind) - count
            wider[job_id] = (job, job.counts)
    heap = [step for job, counts in wider.values() for step in _double(job, counts)]
    heapify(heap)
    while heap:
        _, job_id, before, counts = heappop(heap)
        job, held = wider[job_id]
        kind, count = counts[0]
        if held == before and count - before[0][1] <= free[kind]:
            free[kind] -= count - before[0][1]
            wider[job_id] = (job, counts)
            for step in _double(job, counts):
                heappush(heap, step)
    return wider


def _double(job: JobState, counts: Counts) -> list[tuple[float, JobId, Counts, Counts]]:
    """(minus the relative gain for each device, job, before, after), if twice the devices make it faster."""
    kind, count = counts[0]
    curve, most = job.spec.curve(kind), job.spec.max_workers
    if curve is None or (most is not None and 2 * count > most):
        return []
    gain = curve.rate(2 * count) / curve.rate(count) - 1
    return [(-gain / count, job.spec.id, counts, ((kind, 2 * count),))] if gain > MIN_GAIN else []


def _why(job: JobState, counts: Counts, waits: bool) -> str:
    if waits:
        return "its slice of time, before it goes to the back of the queue"
    if counts[0][1] > asked(job.spec):
        return "nobody waits, so it grew into idle devices"
    return "nobody waits, so it keeps what it requested"
