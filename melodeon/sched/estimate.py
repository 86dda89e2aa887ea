"""What can be foreseen from curves: where a job can run, and how long it would take with so many devices."""

from melodeon.core.cluster import DeviceType
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import Ladder
from melodeon.core.jobs import JobSpec

Offer = tuple[DeviceType, int]
"""So many devices of one type."""


def ladders(view: ClusterView, spec: JobSpec) -> list[tuple[DeviceType, Ladder]]:
    """The types whose devices are enough for the job's least, preferred type first."""
    return [
        (kind, ladder)
        for kind, ladder in spec.ladders
        if ladder.levels and ladder.levels[0] <= view.cluster.count(kind)
    ]


def seconds_left(view: ClusterView, job: JobState, kind: DeviceType, workers: int) -> float:
    """Seconds until a job is done if it has `workers` devices of a type from now on, with the pause that costs."""
    spec = job.spec
    curve = spec.curve(kind)
    assert curve is not None, "asked only for types that the job can run on"
    if job.num_devices == job.held(kind) == workers:
        # A straggler is among the devices that it keeps; elsewhere full speed is expected.
        return max(0.0, job.resume_s - view.now_s) + job.remaining / (curve.rate(workers) * job.speed)
    pause_s = view.overheads.pause_s(spec.model, workers, fresh=job.started_s is None)
    return pause_s + job.remaining / curve.rate(workers)
