"""The chart's future: who will hold which devices, as the cluster played forward says.

A simulation tells what it changes; here that becomes times in which somebody holds something, from how it stands now.
"""

from collections.abc import Iterator

from melodeon.core.clusterview import ClusterView
from melodeon.core.jobs import JobId
from melodeon.core.plan import Placement, Reject, Suspend
from melodeon.core.service import Device, Span
from melodeon.placement.topology import topology_of
from melodeon.sim.engine import SimResult


def shares_ahead(view: ClusterView, found: SimResult, origin: float) -> tuple[Span, ...]:
    """Every planned share, in order of its beginning; `found` was played forward from the view, and recorded."""
    topology = topology_of(view.cluster)
    held: dict[JobId, tuple[float, Placement, str]] = {}
    held.update({name: (view.now_s, job.placement, "as now") for name, job in view.jobs.items() if job.placement})

    def until(name: JobId, at_s: float) -> Iterator[Span]:
        if name in held:
            since_s, placement, why = held.pop(name)
            if at_s > since_s:
                devices = tuple(
                    Device(node=node.id, index=index, type=node.device_type)
                    for node, index in topology.devices_of(placement)
                )
                yield Span(job=name, devices=devices, began_at=since_s + origin, ended_at=at_s + origin, why=why)

    made: list[Span] = []
    for logged in found.log:
        action = logged.action
        if isinstance(action, Reject):
            continue
        made += until(action.job, logged.at_s)
        if not isinstance(action, Suspend):
            held[action.job] = (logged.at_s, action.placement, action.why)
    ends = {outcome.id: outcome.finished_s for outcome in found.outcomes}
    for name in list(held):
        made += until(name, ends.get(name) or found.end_s)
    return tuple(sorted(made, key=lambda span: span.began_at))
