"""ElasticFlow's promises where processes take a while to begin, and hardly any time to be resized."""

from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import clusters, job, job_lists

CURVE = ScalingCurve(((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.0)))


def flat(seconds: float) -> Pause:
    return Pause(base_s=seconds, large_s=seconds, connect_s=0.0)


def late(jobs: list[JobSpec], cluster: Cluster, costs: Overheads) -> list[str]:
    """Who was promised a deadline and missed it."""
    result = Simulation(SimConfig(cluster=cluster, overheads=costs), jobs, ElasticFlow()).run().result()
    return [outcome.id for outcome in result.outcomes if outcome.admitted and not outcome.in_time]


def crowd() -> list[JobSpec]:
    """More than can be done, each with little time: many are stopped and started again."""
    return [
        job(f"j{k}", 60.0 + 7 * (k % 5), CURVE, submit_s=4.0 * k, deadline_s=4.0 * k + 45.0 + 9 * (k % 4))
        for k in range(24)
    ]


def test_no_promise_is_broken_by_what_starts_cost() -> None:
    costs = Overheads(default=flat(0.2), start=flat(4.0), first_start=True)
    assert late(crowd(), Cluster.parse("1x8"), costs) == []


@given(job_lists(most=14, hard_only=True), clusters, st.floats(0.0, 40.0), st.floats(0.0, 1.0), st.booleans())
def test_promises_hold_whatever_starts_and_resizes_cost(
    jobs: list[JobSpec], cluster: Cluster, start_s: float, part: float, first: bool
) -> None:
    costs = Overheads(default=flat(start_s * part), start=flat(start_s), first_start=first)
    assert late(jobs, cluster, costs) == []
