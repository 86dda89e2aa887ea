"""What every policy must keep to, whatever it optimises. A new policy is tested here by being registered."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.policy import Decision
from melodeon.sched.registry import POLICIES, make_policy
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.incidents import Incident, random_failures
from melodeon.sim.live import JobOutcome
from tests.sched.draws import bounded_jobs, clusters, job, job_lists, overheads, typed


class Watched:
    """A policy whose every decision is checked."""

    def __init__(self, name: str) -> None:
        self.inner = make_policy(name)
        if hasattr(self.inner, "admit"):
            self.admit = self.inner.admit

    def decide(self, view, state):  # type: ignore[no-untyped-def]
        decision = self.inner.decide(view, state)
        again: Decision = self.inner.decide(view, state)
        assert again.shares == decision.shares, "the same view and state give the same shares"
        assert again.wake_at == decision.wake_at
        used: dict[str, int] = {}
        for job_id, share in decision.shares.items():
            spec = view.jobs[job_id].spec
            assert share.job == job_id
            assert share.why
            assert share.num_devices >= spec.min_workers
            assert spec.max_workers is None or share.num_devices <= spec.max_workers
            for kind, count in share.counts:
                assert spec.curve(kind) is not None, "only on types that the job can run on"
                used[kind] = used.get(kind, 0) + count
        assert all(count <= view.cluster.count(kind) for kind, count in used.items())
        assert decision.wake_at is None or decision.wake_at > view.now_s
        return decision


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=25)
@given(job_lists(), clusters, overheads, st.sampled_from([0.0, 60.0]))
def test_laws_hold_in_every_round_and_every_admitted_job_ends(
    name: str, jobs: list[JobSpec], cluster: Cluster, costs: Overheads, slot_s: float
) -> None:
    config = SimConfig(cluster=cluster, slot_s=slot_s, overheads=costs)
    result = Simulation(config, jobs, Watched(name)).run().result()
    assert len(result.outcomes) == len(jobs)
    assert all(o.finished_s is not None for o in result.outcomes if o.admitted)
    assert all(o.service_s >= 0 for o in result.outcomes)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=10)
@given(job_lists(most=8), st.integers(0, 1000))
def test_laws_hold_while_nodes_fail(name: str, jobs: list[JobSpec], seed: int) -> None:
    cluster = Cluster.parse("4x4")
    failures = random_failures(cluster, mean_up_s=4000, mean_repair_s=1500, until_s=20_000, seed=seed)
    config = SimConfig(cluster=cluster, incidents=failures)
    result = Simulation(config, jobs, Watched(name)).run().result()
    assert all(o.finished_s is not None for o in result.outcomes if o.admitted)


MIXED = st.sampled_from(["2x2:A,1x8:B", "1x4:A,2x4:B", "1x2:A,1x4:B"])


def ends(outcome: JobOutcome, cluster: Cluster) -> bool:
    """Whether a job was turned away, came to its end, or never can where types do not mix."""
    possible = any(cluster.count(kind) >= outcome.spec.min_workers for kind, _ in outcome.spec.curves)
    return not outcome.admitted or outcome.finished_s is not None or not possible


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=8)
@given(bounded_jobs(), MIXED, st.none() | st.integers(0, 500))
def test_laws_hold_for_jobs_with_bounds_on_two_types(
    name: str, jobs: list[JobSpec], text: str, seed: int | None
) -> None:
    cluster = Cluster.parse(text)
    failures = (
        () if seed is None else random_failures(cluster, mean_up_s=4e3, mean_repair_s=1500, until_s=2e4, seed=seed)
    )
    result = Simulation(SimConfig(cluster=cluster, incidents=failures), jobs, Watched(name)).run().result()
    assert all(ends(outcome, cluster) for outcome in result.outcomes)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=8)
@given(
    bounded_jobs(), MIXED, st.sampled_from(["easyscale-heter", "gavel-hetero", "elasticflow"]), st.integers(100, 4000)
)
def test_laws_hold_for_a_policy_that_takes_over_from_another(
    name: str, jobs: list[JobSpec], text: str, before: str, when_s: int
) -> None:
    cluster = Cluster.parse(text)
    trunk = Simulation(SimConfig(cluster=cluster), jobs, Watched(before)).run(float(when_s))
    result = trunk.fork(policy=Watched(name)).run().result()
    assert all(ends(outcome, cluster) for outcome in result.outcomes)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_that_is_too_large_for_the_cluster_keeps_no_other_from_ending(name: str) -> None:
    large = job("large", 100.0, ScalingCurve.linear(1.0, 8), min_workers=8)
    small = job("small", 100.0, ScalingCurve.linear(1.0, 8), submit_s=5.0)
    result = Simulation(SimConfig(cluster=Cluster.parse("1x4")), [large, small], Watched(name)).run().result()
    assert [outcome.finished_s is not None for outcome in result.outcomes] == [False, True]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_that_comes_while_its_only_type_with_room_is_down_runs_when_that_is_back(name: str) -> None:
    cluster, line = Cluster.parse("1x2:A,1x4:B"), ScalingCurve.linear(1.0, 4)
    both = replace(
        job("both", 100.0, line, min_workers=3, submit_s=20.0), curves=((typed("A"), line), (typed("B"), line))
    )
    first = replace(job("first", 10.0, line), curves=((typed("B"), line),))
    incidents = [Incident(at_s, cluster.nodes[1].id, up) for at_s, up in ((15.0, False), (300.0, True))]
    config = SimConfig(cluster=cluster, incidents=tuple(incidents))
    result = Simulation(config, [first, both], Watched(name)).run().result()
    assert all(outcome.finished_s is not None for outcome in result.outcomes)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_is_a_value_and_has_no_memory_of_its_own(name: str) -> None:
    policy = make_policy(name)
    assert policy == make_policy(name)
    with pytest.raises((AttributeError, TypeError)):
        policy.memory = "of the last round"  # type: ignore[attr-defined]


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'elastikflow' is not known: did you mean 'elasticflow'"):
        make_policy("elastikflow")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UsageError, match="'elasticflow' has no option 'colour': choose of"):
        make_policy("elasticflow", colour="red")


@pytest.mark.parametrize(
    ("name", "option", "value", "takes"),
    [
        ("elasticflow", "reserve", 1.5, "a whole number, such as 0"),
        ("elasticflow", "reserve", True, "a whole number, such as 0"),
        ("elasticflow", "quote", 1, "yes or no"),
        ("themis", "lease_s", True, "a number, such as 1200"),
        ("pollux", "power", float("nan"), "a number, such as -1"),
        ("gavel", "round_s", "soon", "a number, such as 360"),
        ("tiresias", "promote", "often", "a number or none"),
    ],
)
def test_an_option_of_another_kind_is_told_what_it_takes(name: str, option: str, value: object, takes: str) -> None:
    with pytest.raises(UsageError, match=f"policy '{name}' cannot be had with {option}=.*: it takes {takes}$"):
        make_policy(name, **{option: value})


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("chronus", "lease_s", (1e-9, 1e308)),
        ("chronus", "max_nodes", (0, 10**18)),
        ("easyscale-heter", "growth", (1.0, 1e308)),
        ("easyscale-homo", "growth", (1e308,)),
        ("gandiva", "slice_s", (1e-9, 1e308)),
        ("gavel", "round_s", (1e-9, 1e308)),
        ("gavel-hetero", "round_s", (1e-9, 1e308)),
        ("optimus", "interval_s", (1e-9, 1e308)),
        ("pollux", "power", (0.0, 1e308, -1e308)),
        ("themis", "lease_s", (1e-9, 1e308)),
    ],
)
def test_an_option_beyond_what_can_be_is_refused(name: str, option: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=f"{option}="):
            make_policy(name, **{option: value})


@pytest.mark.parametrize("name", ["tiresias", "elastic-tiresias"])
def test_queues_that_cannot_be_are_refused(name: str) -> None:
    for thresholds in ((float("nan"),), (float("inf"),), (10.0, 5.0), "ten", None, ("ten",)):
        with pytest.raises(UsageError, match="they are numbers above 0 that ascend"):
            make_policy(name, thresholds_s=thresholds)
    with pytest.raises(UsageError, match="promote=-1 must be above 0"):
        make_policy(name, promote=-1)
    assert make_policy(name, promote=2, thresholds_s=5) == make_policy(name, promote=2.0, thresholds_s=(5,))
