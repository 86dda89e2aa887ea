"""Every figure of a simulation, by hand on jobs small enough for it."""

from dataclasses import replace

import pytest

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import ClusterView
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Goal, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Share
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Decision, Policy
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.metrics import Summary, size_class, summarize
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 8)


def figures(jobs: list[JobSpec], policy: Policy, cluster: str = "1x4") -> Summary:
    config = SimConfig(cluster=Cluster.parse(cluster), overheads=Overheads.none())
    return summarize(Simulation(config, jobs, policy).run().result())


def test_completion_and_pending_times() -> None:
    # One after the other on all four devices, each for 10 s but the last, which takes 70 s.
    jobs = [job(f"j{n}", 40.0, LINEAR, requested_workers=4, submit_s=float(n)) for n in range(3)]
    found = figures([*jobs, job("long", 280.0, LINEAR, requested_workers=4, submit_s=3.0)], Fifo())
    # They end at 10, 20, 30 and 100 s, and begin at 0, 10, 20 and 30 s.
    assert found.jct_mean_s == pytest.approx((10 + 19 + 28 + 97) / 4)
    assert found.jct_median_s == pytest.approx((19 + 28) / 2)
    assert found.jct_p99_s == pytest.approx(97.0)
    assert found.best_effort_jct_mean_s == found.jct_mean_s
    assert found.pending_mean_s == pytest.approx((0 + 9 + 18 + 27) / 4)
    assert found.makespan_s == pytest.approx(100.0)
    assert found.utilisation == pytest.approx(1.0)


def test_jobs_are_classed_by_the_devices_they_request_times_how_long() -> None:
    sizes = {"small": 9_000.0, "edge": 10_000.0, "most": 200_000.0, "large": 201_000.0}
    jobs = [job(name, work, LINEAR, requested_workers=2) for name, work in sizes.items()]
    assert [size_class(spec) for spec in jobs] == ["small", "medium", "medium", "large"]
    assert size_class(job("told", 9_000.0, LINEAR, requested_workers=2, duration_s=6000.0)) == "medium"
    found = figures(jobs, Fifo(), "1x8")
    assert (found.num_small, found.num_medium, found.num_large) == (1, 2, 1)
    times = (found.jct_small_mean_s, found.jct_medium_mean_s, found.jct_large_mean_s)
    assert times == pytest.approx((4_500.0, 52_500.0, 100_500.0))


def test_deadlines_are_counted_over_all_who_have_one() -> None:
    jobs = [
        job("kept", 40.0, LINEAR, deadline_s=20.0),
        job("refused", 4000.0, LINEAR, deadline_s=30.0),
        job("soft", 4000.0, LINEAR, deadline_s=30.0, goal=Goal.SOFT),
        job("easy", 40.0, LINEAR),
    ]
    found = figures(jobs, ElasticFlow())
    assert (found.num_jobs, found.num_deadlines, found.num_in_time) == (4, 3, 1)
    assert (found.num_rejected, found.num_missed, found.num_soft_missed) == (1, 0, 1)
    assert found.deadline_ratio == pytest.approx(1 / 3)
    assert figures([job("easy", 40.0, LINEAR)], Fifo()).deadline_ratio is None


def test_fairness_is_measured_against_an_even_share() -> None:
    # Both are there all the time, so that each would have 2 of 4 devices; the second waits for the first.
    jobs = [job(name, 40.0, LINEAR, requested_workers=4) for name in "ab"]
    found = figures(jobs, Fifo())
    # 10 s instead of 20 s or, alone afterwards, 20 s instead of the 40 / int(4 / 1.5) = 20 s of its mean share.
    assert found.fairness_worst == pytest.approx(1.0)
    assert found.fairness_mean == pytest.approx((0.5 + 1.0) / 2)


def test_what_decisions_took_is_what_was_measured() -> None:
    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=Overheads.none())
    result = Simulation(config, [job("a", 40.0, LINEAR)], Fifo()).run().result()
    found = summarize(result)
    assert found.num_rounds == len(result.decision_s) > 0
    assert found.decision_total_s == sum(result.decision_s) > 0
    assert found.decision_mean_ms == pytest.approx(1e3 * found.decision_total_s / found.num_rounds)
    assert found.decision_p99_ms == pytest.approx(1e3 * max(result.decision_s))


def two_types(requested: int = 2) -> JobSpec:
    """Four times as fast on an A100 as on a T4, which it would rather have."""
    curves = ((DeviceType("T4"), LINEAR), (DeviceType("A100"), ScalingCurve(((1, 4.0), (2, 6.0)))))
    return replace(job("a", 120.0, LINEAR, requested_workers=requested), curves=curves)


@pytest.mark.parametrize(("cluster", "efficient"), [("1x2:T4", 1.0), ("1x2:A100", 0.75)])
def test_efficiency_is_measured_against_one_device_of_the_type_that_a_job_is_on(cluster: str, efficient: float) -> None:
    found = figures([two_types()], Fifo(), cluster)
    assert (found.utilisation, found.cluster_efficiency) == pytest.approx((1.0, efficient))


def test_efficiency_on_several_types_is_that_of_their_devices_together() -> None:
    class Both(Fifo):
        def decide(self, view: ClusterView, state: object) -> Decision:
            return Decision({name: Share(name, view.cluster.capacity, "both types") for name in view.jobs})

    # 1 iteration a second on the T4 and 6 on two A100, where each alone would make 1 + 4 + 4.
    found = figures([two_types()], Both(), "1x1:T4,1x2:A100")
    assert found.cluster_efficiency == pytest.approx(7 / 9)


def test_fairness_knows_the_types_that_are_there() -> None:
    assert figures([two_types()], Fifo(), "1x2:A100").fairness_mean == pytest.approx(1.0)
    # Alone it could have 2 of each type, and would be done in 20 s on the A100; on one T4 it takes 120 s.
    found = figures([two_types(requested=1)], Fifo(), "1x2:T4,1x2:A100")
    assert found.fairness_mean == pytest.approx(120 / 20)
