"""Backfill and Elan's elastic queues."""

from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.backfill import Backfill, Reserved
from melodeon.sched.elastic_backfill import ElasticBackfill
from melodeon.sched.elastic_fifo import ElasticFifo
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Decision, Policy
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import GPU, clusters, first_shares, job, job_lists, overheads, view_of

LINEAR = ScalingCurve.linear(1.0, 8)


class Noting:
    """A policy whose decisions are kept."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.seen: list[tuple[ClusterView, Decision]] = []

    def decide(self, view: ClusterView, state: object) -> Decision:
        decision = self.inner.decide(view, state)
        self.seen.append((view, decision))
        return decision


def requests(*asked: tuple[str, float, int]) -> list[JobSpec]:
    """Jobs of (name, iterations, requested workers)."""
    return [job(name, work, LINEAR, requested_workers=workers) for name, work, workers in asked]


def test_a_short_job_passes_the_head_and_a_long_one_does_not() -> None:
    jobs = requests(("runs", 600.0, 6), ("head", 100.0, 8), ("long", 300.0, 2), ("short", 200.0, 2))
    # `runs` ends after 100 s, when the head needs all 8: 200 iterations on 2 take just as long, 300 do not.
    assert first_shares(Backfill(), jobs) == {"runs": 6, "short": 2}
    assert first_shares(Fifo(), jobs) == {"runs": 6}


def test_a_job_of_any_length_may_use_what_the_head_will_not_need() -> None:
    jobs = requests(("runs", 600.0, 6), ("head", 100.0, 7), ("endless", 1e6, 1), ("second", 1e6, 1))
    # One device is spare at the head's start: the first takes it, and there is none for the second.
    assert first_shares(Backfill(), jobs) == {"runs": 6, "endless": 1}


@given(job_lists(), clusters, overheads, st.sampled_from([0.0, 60.0]))
def test_backfill_never_delays_the_reserved_start(
    jobs: list[JobSpec], cluster: Cluster, costs: Overheads, slot_s: float
) -> None:
    policy = Noting(Backfill())
    config = SimConfig(cluster=cluster, slot_s=slot_s, overheads=costs)
    result = Simulation(config, jobs, policy).run().result()
    started = {o.id: o.started_s for o in result.outcomes}
    reserved = [decision.state for _, decision in policy.seen]
    for promise in reserved:
        if isinstance(promise, Reserved):
            begins = started[promise.job]
            assert begins is not None
            assert begins <= promise.start_s * (1 + 1e-9) + 1e-6
    assert all(o.num_migrations == o.num_resizes == o.num_suspensions == 0 for o in result.outcomes)


@given(job_lists(), clusters)
def test_backfill_is_fifo_for_jobs_of_one_size(jobs: list[JobSpec], cluster: Cluster) -> None:
    same = [
        job(spec.id, spec.iterations, spec.curves[0][1], submit_s=spec.submit_s, requested_workers=1) for spec in jobs
    ]
    config = SimConfig(cluster=cluster, overheads=Overheads.none())
    ends = [
        [o.finished_s for o in Simulation(config, same, policy).run().result().outcomes]
        for policy in (Backfill(), Fifo())
    ]
    assert ends[0] == ends[1]


def bounded(jobs: list[JobSpec], least: list[int]) -> list[JobSpec]:
    return [
        job(
            spec.id,
            spec.iterations,
            spec.curves[0][1],
            submit_s=spec.submit_s,
            requested_workers=spec.requested_workers,
            min_workers=least[index % len(least)],
            max_workers=2 * least[index % len(least)],
        )
        for index, spec in enumerate(jobs)
    ]


leasts = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)


@given(job_lists(), leasts, overheads, st.sampled_from([ElasticFifo(), ElasticBackfill(), Backfill()]))
def test_bounds_are_kept_and_nothing_is_given_twice(
    jobs: list[JobSpec], least: list[int], costs: Overheads, inner: Policy
) -> None:
    policy = Noting(inner)
    config = SimConfig(cluster=Cluster.parse("2x4"), overheads=costs)
    result = Simulation(config, bounded(jobs, least), policy).run().result()
    assert all(o.finished_s is not None for o in result.outcomes)
    for view, decision in policy.seen:
        given_away = 0
        for name, share in decision.shares.items():
            spec = view.jobs[name].spec
            assert spec.min_workers <= share.num_devices <= (spec.max_workers or 8)
            given_away += share.num_devices
        assert given_away <= 8


@given(job_lists(), leasts, overheads)
def test_elastic_fifo_admits_in_order_and_stops_nobody(jobs: list[JobSpec], least: list[int], costs: Overheads) -> None:
    config = SimConfig(cluster=Cluster.parse("2x4"), overheads=costs)
    result = Simulation(config, bounded(jobs, least), ElasticFifo()).run().result()
    starts = [o.started_s or 0.0 for o in result.outcomes]
    assert starts == sorted(starts)
    assert all(o.num_suspensions == 0 for o in result.outcomes)


def test_elastic_fifo_gives_each_step_to_the_job_that_gains_most_time() -> None:
    flat = ScalingCurve(((1, 1.0), (2, 1.1), (4, 1.2), (8, 1.3)))
    jobs = [job("flat", 1000.0, flat), job("steep", 1000.0, LINEAR)]
    # One each; then `steep` saves 500 s for one more device, 125 s for each of two more: more than `flat` ever does.
    assert first_shares(ElasticFifo(), jobs, "1x5") == {"flat": 1, "steep": 4}


def test_a_newcomer_starts_among_full_ones_only_if_the_mean_gains() -> None:
    cluster = Cluster.parse("1x8")
    for work, starts in ((80.0, True), (1e6, False)):
        held = JobState(job("runs", 8000.0, LINEAR), 0.0, done=7000.0, counts=((GPU, 8),), started_s=0.0)
        view = view_of(cluster, [held, JobState(job("new", work, LINEAR), 0.0)], 10.0, overheads=Overheads.none())
        assert (JobId("new") in ElasticFifo().decide(view, None).shares) is starts


def test_elastic_backfill_lets_a_short_job_pass_a_long_head() -> None:
    held = JobState(job("runs", 8000.0, LINEAR), 0.0, done=7000.0, counts=((GPU, 8),), started_s=0.0)
    waiting = [JobState(job("head", 1e6, LINEAR, min_workers=8), 0.0), JobState(job("short", 8.0, LINEAR), 0.0)]
    view = view_of(Cluster.parse("1x8"), [held, *waiting], 10.0, overheads=Overheads.none())
    assert set(ElasticFifo().decide(view, None).shares) == {"runs"}
    passed = ElasticBackfill().decide(view, None).shares
    # It takes devices from `runs`, whose end the head waits for: passing would delay the head.
    assert set(passed) == {"runs"}
    free = JobState(job("runs", 8000.0, LINEAR, max_workers=4), 0.0, done=7000.0, counts=((GPU, 4),), started_s=0.0)
    view = view_of(Cluster.parse("1x8"), [free, *waiting], 10.0, overheads=Overheads.none())
    assert set(ElasticBackfill().decide(view, None).shares) == {"runs", "short"}
    assert "it passes head" in ElasticBackfill().decide(view, None).shares[JobId("short")].why
