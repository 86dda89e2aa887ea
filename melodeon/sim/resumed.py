"""A simulation that goes on from a moment of a cluster which was not simulated so far: what the live one knows."""

from collections.abc import Sequence
from dataclasses import replace

from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.jobs import JobSpec
from melodeon.core.plan import Verdict
from melodeon.placement.topology import Topology, topology_of
from melodeon.sched.policy import Policy
from melodeon.sched.tick import TickState
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.live import LiveJob


def resumed(
    config: SimConfig, view: ClusterView, policy: Policy, state: TickState, newcomers: Sequence[JobSpec] = ()
) -> Simulation:
    """A simulation that stands where the view does; newcomers are submitted at once."""
    coming = [replace(spec, submit_s=view.now_s) for spec in newcomers]
    there = [job.spec for job in view.jobs.values()]
    made = Simulation(config, [*there, *coming], policy)
    # The constructor has everybody arrive in turn; here most have arrived.
    made._arrivals, made._next_arrival = [*there, *coming], len(there)
    made.now_s = made._start_s = view.now_s
    made._state, made._dirty = state, True
    topology = topology_of(config.cluster)
    for name, job in view.jobs.items():
        made._jobs[name] = _live(job, view.now_s, topology, config.overheads.end_s)
        if job.admitted_s is not None:
            made._verdicts[name] = Verdict(name, admitted=True, why="admitted before")
    return made


def _live(job: JobState, now_s: float, topology: Topology, end_s: float) -> LiveJob:
    made = LiveJob(job.spec, 0.0, end_s)
    made.admitted_s, made.started_s, made.done = job.admitted_s, job.started_s, job.done
    made.service_s, made.speed = job.service_s, job.speed
    made.changed_s, made.resume_s = now_s, max(now_s, job.resume_s)
    if job.counts:
        scattered = len(job.placement) > 1 and not topology.is_compact(job.placement)
        made.counts, made.placement, made.num_devices = job.counts, job.placement, job.num_devices
        made.rate = job.spec.rate(job.counts, scattered=scattered) * job.speed
        made.finish_s = made.resume_s + (job.spec.iterations - job.done) / made.rate + end_s
    return made
