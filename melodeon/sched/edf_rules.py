"""What the policies by deadline share: who goes first, and on how many devices: as many as help, fewer where not free.

A job that waited for all of its devices would leave idle what it cannot fill, to nobody's use. `widest` is the rule of
ElasticFlow's own code: sizes that were measured count even where the job is slower on them.
"""

from collections.abc import Iterable

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.plan import Share
from melodeon.sched.estimate import Offer
from melodeon.sched.gang import Room


def deadline(job: JobState) -> tuple[float, float]:
    """By deadline, then by submission; best-effort jobs last."""
    due = job.spec.deadline_s
    return (due if due is not None else float("inf"), job.spec.submit_s)


def sizes(spec: JobSpec, kind: DeviceType, devices: int, widest: bool) -> tuple[int, ...]:
    """Numbers of devices of one type that the job can run on, ascending, at most `devices`."""
    if widest:
        curve, most = spec.curve(kind), min(devices, spec.max_workers or devices)
        # Its least as well, as on a ladder: a job that was measured only outside its bounds would wait for ever.
        counts = {spec.min_workers, *(n for n, _ in curve.points)} if curve else ()
        return tuple(sorted(n for n in counts if spec.min_workers <= n <= most))
    ladder = spec.ladder(kind)
    return ladder.levels[: ladder.reach(devices)] if ladder and ladder.levels else ()


def best(spec: JobSpec, held: Counts, offers: Iterable[Offer]) -> Offer:
    """Of sizes on several types that on the one that it holds, else where it is fastest."""
    kinds = {kind for kind, _ in held}
    return max(offers, key=lambda offer: (offer[0] in kinds, spec.rate((offer,))))


def take(room: Room, job: JobState, widest: bool) -> Counts | None:
    """Give a job the largest size that is free: on the type that it holds, else where it is fastest; None: it waits."""
    offers: list[Offer] = []
    for kind, _ in job.spec.curves:
        fits = sizes(job.spec, kind, room.free(kind), widest)
        if fits:
            offers.append((kind, fits[-1]))
    return room.take(job, [best(job.spec, job.counts, offers)]) if offers else None


def in_order(view: ClusterView, widest: bool, among: str = "") -> dict[JobId, Share]:
    """Shares in order of deadline until nothing is left; `among` ends the reason's first part."""
    room = Room(view)
    shares: dict[JobId, Share] = {}
    for place, job in enumerate(sorted(view.admitted, key=deadline)):
        counts = take(room, job, widest)
        if counts is not None:
            kind, count = counts[0]
            whole = sizes(job.spec, kind, view.cluster.count(kind), widest)[-1]
            why = f"number {place + 1} by deadline{among}, "
            why += f"on all {count} that {'it knows' if widest else 'help'}" if count == whole else "on what is free"
            shares[job.spec.id] = Share(job.spec.id, counts, why)
        if room.is_empty:
            break
    return shares
