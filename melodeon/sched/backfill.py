"""FIFO gang scheduling with EASY backfill: a later job may pass the queue's head if the head starts no later for it.

The head that does not fit has the earliest moment reserved at which enough devices will be free, as the running jobs'
curves tell. A later job starts now if it ends before that moment, or if the devices it takes are not needed then.
Nobody is preempted or moved. The reservation is the policy's state, so that it can be shown.
"""

from dataclasses import dataclass

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId
from melodeon.core.plan import Share
from melodeon.sched.estimate import Offer, seconds_left
from melodeon.sched.gang import Room, granted
from melodeon.sched.policy import Decision

Ends = dict[DeviceType, list[tuple[float, int]]]
"""When devices become free, by type: (moment, how many)."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The place that is kept for the head of the queue."""

    job: JobId
    kind: DeviceType
    workers: int
    start_s: float
    spare: int
    """Devices of that type that will be free then and that the head does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The policy."""

    def decide(self, view: ClusterView, state: object) -> Decision:
        """Running jobs stay; the queue starts in order; who does not harm the head may pass it."""
        del state
        room = Room(view)
        shares: dict[JobId, Share] = {}
        ends: Ends = {kind: [] for kind in view.cluster.types}
        for job in view.admitted:
            counts = room.keep(job)
            if counts is not None:
                _start(view, job, counts, "it runs until it is done", shares, ends)
        head: Reserved | None = None
        for job in view.admitted:
            if job.spec.id in shares:
                continue
            if room.is_empty and head is not None:
                break
            wants = room.requested(job.spec)
            if head is not None:
                wants = [offer for offer in wants if harmless(view, job, offer, head)]
            counts = room.take(job, wants)
            if counts is None:
                head = head or reserve(view, room, ends, job, wants)
                continue
            why = f"next of the queue, and {granted(job.spec, counts[0][1])}"
            if head is not None:
                why = f"it passes {head.job}, which starts no later for it (in {head.start_s - view.now_s:.0f} s)"
                head = _after(view, job, counts[0], head)
            _start(view, job, counts, why, shares, ends)
        return Decision(shares, head)


def reserve(view: ClusterView, room: Room, ends: Ends, job: JobState, wants: list[Offer]) -> Reserved | None:
    """The earliest moment at which one of the offers will be free; None: the cluster has too few devices for it."""
    best: Reserved | None = None
    for kind, workers in wants:
        free, start_s = room.free(kind), view.now_s
        for end_s, released in sorted(ends[kind]):
            if free >= workers and end_s > start_s:
                break
            free, start_s = free + released, end_s
        if free >= workers and (best is None or start_s < best.start_s):
            best = Reserved(job.spec.id, kind, workers, start_s, free - workers)
    return best


def harmless(view: ClusterView, job: JobState, offer: Offer, head: Reserved) -> bool:
    """Whether the head can start when it was promised to although this job starts now."""
    kind, workers = offer
    if kind != head.kind or workers <= head.spare:
        return True
    return _end_s(view, job, (offer,)) <= head.start_s


def _after(view: ClusterView, job: JobState, offer: Offer, head: Reserved) -> Reserved:
    """The head's reservation once a job that passed it has its devices."""
    kind, workers = offer
    if kind != head.kind or _end_s(view, job, (offer,)) <= head.start_s:
        return head
    return Reserved(head.job, head.kind, head.workers, head.start_s, head.spare - workers)


def _end_s(view: ClusterView, job: JobState, counts: Counts) -> float:
    """When a job's devices can be given to another at the latest: with decision slots, one slot after its end."""
    if len(counts) == 1:
        left_s = seconds_left(view, job, *counts[0])
    else:
        # Only a job that another policy has started holds several types; it keeps them.
        left_s = max(0.0, job.resume_s - view.now_s) + job.remaining / (job.spec.rate(counts) * job.speed)
    return view.now_s + left_s + view.slot_s


def _start(view: ClusterView, job: JobState, counts: Counts, why: str, shares: dict[JobId, Share], ends: Ends) -> None:
    # Moving it would cost a pause, and with it the reservation.
    shares[job.spec.id] = Share(job.spec.id, counts, why, pinned=True)
    end_s = _end_s(view, job, counts)
    for kind, count in counts:
        ends[kind].append((end_s, count))
