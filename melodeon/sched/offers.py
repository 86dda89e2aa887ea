"""Ways to run a job that schedulers for several device types choose from, each with its normalised throughput.

The value of an offer is its throughput over that of an equal share of all devices, times the devices that the job
requests, over its weight: Gavel's weighted least-attained-service objective.
"""

from collections.abc import Iterable, Iterator

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobSpec
from melodeon.sched.gang import asked
from melodeon.sched.hetero import mixed_rate
from melodeon.sched.maxmin import Valued

LIGHTEST = 1e-9


def homogeneous(view: ClusterView, spec: JobSpec) -> list[Valued]:
    """What the job requested, at most all devices of the type, on each type that it can run on."""
    return _valued(view, spec, _requested(view, spec))


def with_mixtures(view: ClusterView, spec: JobSpec) -> list[Valued]:
    """Also as many devices, half of them of one type and half of another."""
    alone = list(_requested(view, spec))
    return _valued(view, spec, [*alone, *_halves(view, spec, [kind for ((kind, _),) in alone])])


def _requested(view: ClusterView, spec: JobSpec) -> Iterator[tuple[tuple[DeviceType, int]]]:
    for kind, _ in spec.curves:
        count = min(asked(spec), view.cluster.count(kind))
        if count >= spec.min_workers:
            yield ((kind, count),)


def _halves(view: ClusterView, spec: JobSpec, kinds: list[DeviceType]) -> Iterator[Counts]:
    total = asked(spec)
    half = total // 2
    if total % 2:
        return
    usable = [kind for kind in kinds if view.cluster.count(kind) >= half]
    for place, first in enumerate(usable):
        for second in usable[place + 1 :]:
            yield ((first, half), (second, half))


def _valued(view: ClusterView, spec: JobSpec, ways: Iterable[Counts]) -> list[Valued]:
    rates = [(counts, mixed_rate(spec, counts)) for counts in ways]
    alone = {counts[0][0]: rate for counts, rate in rates if len(counts) == 1}
    equal = sum(rate * view.cluster.count(kind) for kind, rate in alone.items()) / max(1, view.cluster.num_devices)
    scale = asked(spec) / max(spec.weight, LIGHTEST)
    return [Valued(counts, rate / equal * scale) for counts, rate in rates if rate > 0 and equal > 0]
