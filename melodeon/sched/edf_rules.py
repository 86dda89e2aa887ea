"""What the policies by deadline share: who goes first, and on how many devices: as many as help, fewer where not free.

A job that waited for all of its devices would leave idle what it cannot fill, to nobody's use. `widest` is the rule of
ElasticFlow's own code: sizes that were measured count even where the job is slower on them.
"""

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.jobs import JobSpec
from melodeon.sched.gang import Room


def deadline(job: JobState) -> tuple[float, float]:
    """By deadline, then by submission; best-effort jobs last."""
    due = job.spec.deadline_s
    return (due if due is not None else float("inf"), job.spec.submit_s)


def sizes(spec: JobSpec, kind: DeviceType, devices: int, widest: bool) -> tuple[int, ...]:
    """Numbers of devices of one type that the job can run on, ascending, at most `devices`."""
    if widest:
        curve, most = spec.curve(kind), min(devices, spec.max_workers or devices)
        return tuple(n for n, _ in curve.points if spec.min_workers <= n <= most) if curve else ()
    ladder = spec.ladder(kind)
    return ladder.levels[: ladder.reach(devices)] if ladder and ladder.levels else ()


def take(room: Room, job: JobState, widest: bool) -> Counts | None:
    """Give a job the largest size that is free: on the type that it holds, else where it is fastest; None: it waits."""
    offers: list[tuple[DeviceType, int]] = []
    for kind, _ in job.spec.curves:
        fits = sizes(job.spec, kind, room.free(kind), widest)
        if fits:
            offers.append((kind, fits[-1]))
    offers.sort(key=lambda offer: -job.spec.rate((offer,)))
    return room.take(job, offers)
