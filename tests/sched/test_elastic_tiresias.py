"""Elastic-Tiresias, and the queues that it shares with Tiresias."""

from dataclasses import replace

from hypothesis import given
from msgspec import structs

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.attained import Standing, queues
from melodeon.sched.elastic_tiresias import ElasticTiresias
from melodeon.sched.tiresias import Tiresias
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import clusters, job, job_lists, overheads, view_of

LINEAR = ScalingCurve.linear(1.0, 16)
QUEUES = (100.0, 1000.0)


def view(jobs: list[JobState], cluster: str = "1x8") -> ClusterView:
    return view_of(Cluster.parse(cluster), jobs, 50.0, overheads=Overheads.none())


def waiting(name: str, workers: int, service_s: float = 0.0, curve: ScalingCurve = LINEAR) -> JobState:
    return JobState(job(name, 1e6, curve, requested_workers=workers), 0.0, service_s=service_s)


def given_to(policy: ElasticTiresias | Tiresias, jobs: list[JobState], cluster: str = "1x8") -> dict[str, int]:
    return {name: share.num_devices for name, share in policy.decide(view(jobs, cluster), None).shares.items()}


def test_r1_halves_jobs_outside_the_first_queue_when_too_many_wait() -> None:
    jobs = [waiting("young", 4), waiting("old", 4, 500.0), waiting("older", 4, 600.0), waiting("one", 1, 700.0)]
    policy = ElasticTiresias(thresholds_s=QUEUES, pending_limit=1)
    assert given_to(Tiresias(thresholds_s=QUEUES), jobs) == {"young": 4, "old": 4}
    # Two would wait: old and older run on 2 each; one cannot be halved, and finds no room.
    assert given_to(replace(policy, scale_out=False), jobs) == {"young": 4, "old": 2, "older": 2}
    assert given_to(replace(policy, pending_limit=2), jobs) == {"young": 4, "old": 4}


def test_r2_gives_idle_devices_to_the_largest_relative_gain_only_when_nobody_waits() -> None:
    flat = ScalingCurve(((2, 2.0), (4, 2.2), (8, 2.3)))
    jobs = [waiting("flat", 2, curve=flat), waiting("steep", 2)]
    assert given_to(ElasticTiresias(), jobs) == {"flat": 4, "steep": 4}
    assert given_to(ElasticTiresias(), jobs, "1x6") == {"flat": 2, "steep": 4}
    jobs.append(waiting("large", 8))
    assert given_to(ElasticTiresias(), jobs) == {"flat": 2, "steep": 2}


def test_both_rules_make_one_plan() -> None:
    jobs = [waiting("a", 8, 500.0), waiting("b", 8, 600.0)]
    held = structs.replace(jobs[0], counts=((jobs[0].spec.curves[0][0], 8),))
    # R1 halves both; on 16 devices R2 would double them again: the plan is what they requested, nobody is resized.
    shares = ElasticTiresias(thresholds_s=QUEUES, pending_limit=0).decide(view([held, jobs[1]], "2x8"), None).shares
    assert [share.num_devices for share in shares.values()] == [8, 8]
    crowded = ElasticTiresias(thresholds_s=QUEUES, pending_limit=0).decide(view([held, jobs[1]], "3x4"), None).shares
    assert sorted(share.num_devices for share in crowded.values()) == [4, 8]


@given(job_lists(), clusters, overheads)
def test_without_its_rules_it_is_tiresias(jobs: list[JobSpec], cluster: Cluster, costs: Overheads) -> None:
    config = SimConfig(cluster=cluster, overheads=costs)
    plain = Simulation(config, jobs, Tiresias(thresholds_s=QUEUES)).run().result()
    without = ElasticTiresias(thresholds_s=QUEUES, scale_in=False, scale_out=False)
    assert [o.finished_s for o in Simulation(config, jobs, without).run().result().outcomes] == [
        o.finished_s for o in plain.outcomes
    ]


def test_a_starving_job_is_promoted_once_and_then_counted_anew() -> None:
    starved = waiting("s", 2, 200.0)
    now = view_of(Cluster.parse("1x8"), [starved], 1000.0)
    first = queues(now, None, QUEUES, promote=8.0)
    assert first.standings == {JobId("s"): Standing(200.0, 1000.0)}
    assert first.of(starved) == 0
    # It ran for 60 s more, sank, and waits: that is not yet eight times as long.
    later = structs.replace(now, now_s=1100.0, jobs={JobId("s"): structs.replace(starved, service_s=320.0)})
    second = queues(later, first.standings, QUEUES, promote=8.0)
    assert second.standings == first.standings
    assert second.of(later.jobs[JobId("s")]) == 1
