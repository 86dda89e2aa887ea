"""The wrapper round a policy: nothing but the policy itself, until a job is measured, fixed or met anew."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import ClusterView, JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Goal, JobId
from melodeon.core.overhead import Overheads
from melodeon.sched.profiled import Memory, Profiled, without
from melodeon.sched.registry import POLICIES, make_policy
from melodeon.sched.tick import Round, TickState, tick
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 8)
SOLVED = {"chronus", "gavel", "gavel-hetero"}
"""Policies that need a solver."""


def view(now_s: float, jobs: Mapping[str, JobState], cluster: str = "1x8") -> ClusterView:
    named = {JobId(name): state for name, state in jobs.items()}
    return ClusterView(now_s, Cluster.parse(cluster), named, 0.0, Overheads.none())


def state(name: str, work: float = 1000.0, deadline_s: float | None = None, **fields: object) -> JobState:
    goal = Goal.HARD if deadline_s is not None else Goal.BEST_EFFORT
    return JobState(job(name, work, LINEAR, deadline_s=deadline_s, goal=goal), **fields)  # type: ignore[arg-type]


def counts(found: Round) -> dict[str, int]:
    return {name: share.num_devices for name, share in found.plan.shares.items()}


@pytest.mark.parametrize("name", sorted(set(POLICIES) - SOLVED))
def test_alone_it_decides_as_the_policy_does(name: str) -> None:
    jobs = [
        job(f"j{i}", 100.0 + 50 * i, LINEAR, submit_s=7.0 * i, deadline_s=400.0 + 60 * i, requested_workers=1 + i % 4)
        for i in range(12)
    ]
    config = SimConfig(cluster=Cluster.parse("2x4"), overheads=Overheads.none())
    plain = Simulation(config, jobs, make_policy(name)).run().result()
    wrapped = Simulation(config, jobs, Profiled(inner=make_policy(name))).run().result()
    assert wrapped.log == plain.log
    assert [o.finished_s for o in wrapped.outcomes] == [o.finished_s for o in plain.outcomes]


@pytest.mark.parametrize("name", sorted(set(POLICIES) - SOLVED))
def test_a_policy_without_memory_takes_over_jobs_that_run(name: str) -> None:
    policy = Profiled(inner=make_policy(name))
    jobs = {f"j{i}": state(f"j{i}", deadline_s=5000.0 + i, admitted_s=0.0) for i in range(3)}
    found = tick(view(10.0, jobs), policy, TickState())
    assert counts(found), "somebody gets something"
    assert found.verdicts == (), "they were admitted before"


def test_fixed_jobs_get_their_size_and_the_others_the_rest() -> None:
    jobs = {name: state(name, admitted_s=0.0) for name in ("a", "b")}
    policy = Profiled(inner=make_policy("elasticflow"), fixed={JobId("a"): 3})
    found = tick(view(1.0, jobs), policy, TickState())
    assert counts(found)["a"] == 3
    assert counts(found)["b"] == 4, "powers of two of what is left"
    free = tick(view(2.0, jobs), Profiled(inner=policy.inner), found.state)
    assert counts(free)["a"] in (4, 8), "given back to the policy, it is met again"


def test_a_fixed_job_is_judged_at_its_size() -> None:
    """An operator's word stands above the policy, which sees nothing of such a job and cannot be asked about it."""
    policy = Profiled(inner=make_policy("elasticflow"), fixed={JobId("a"): 2})
    others = {"b": state("b", admitted_s=0.0)}
    kept = tick(view(10.0, {"a": state("a", 800.0, 410.0), **others}), policy, TickState())
    assert [(verdict.job, verdict.admitted) for verdict in kept.verdicts] == [("a", True)]
    assert counts(kept)["a"] == 2
    (refused,) = tick(view(10.0, {"a": state("a", 800.0, 409.0), **others}), policy, TickState()).verdicts
    assert (refused.admitted, refused.earliest_deadline_s) == (False, 410.0)
    late = JobState(job("a", 800.0, LINEAR, deadline_s=20.0, goal=Goal.SOFT))
    assert tick(view(10.0, {"a": late}), policy, TickState()).verdicts[0].admitted, "it may be late"


def test_a_lease_breaks_no_promise() -> None:
    policy = make_policy("elasticflow")
    tight = state("tight", work=800.0, deadline_s=102.0)
    first = tick(view(1.0, {"tight": tight}), Profiled(inner=policy), TickState())
    assert counts(first) == {"tight": 8}, "it needs everything"
    jobs = {"tight": state("tight", 800.0, 102.0, admitted_s=1.0), "new": state("new", admitted_s=1.5)}
    leases = {JobId("new"): (2, 1)}
    found = tick(view(1.5, jobs), Profiled(inner=policy, leases=leases), first.state)
    assert "new" not in counts(found)
    easy = {"easy": state("easy", 80.0, 5000.0), "new": state("new", admitted_s=1.5)}
    found = tick(view(1.5, easy), Profiled(inner=policy, leases=leases), TickState())
    assert counts(found)["new"] == 2


def test_a_job_whose_curve_has_changed_is_judged_again_without_losing_its_place() -> None:
    policy = Profiled(inner=make_policy("elasticflow"))
    first = tick(view(1.0, {"a": state("a", 800.0, 900.0)}), policy, TickState())
    slow = ScalingCurve.linear(0.5, 8)
    spec = job("a", 800.0, slow, deadline_s=900.0, goal=Goal.HARD)
    second = tick(view(2.0, {"a": JobState(spec, admitted_s=1.0)}), policy, first.state)
    assert counts(second) == {"a": 8}
    memory = second.state.policy
    assert isinstance(memory, Memory)
    assert memory.met[JobId("a")].alias == "a~1"
    hopeless = job("a", 800.0, ScalingCurve.linear(0.01, 8), deadline_s=900.0, goal=Goal.HARD)
    third = tick(view(3.0, {"a": JobState(hopeless, admitted_s=1.0)}), policy, second.state)
    assert counts(third) == {"a": 8}, "it cannot be promised any more, and goes on"
    fourth = tick(view(4.0, {"a": JobState(hopeless, admitted_s=1.0)}), policy, third.state)
    assert counts(fourth) == {"a": 8}


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 40))
def test_a_cluster_without_some_devices_has_so_many_fewer(nodes: int, devices: int, taken: int) -> None:
    cluster = Cluster.parse(f"{nodes}x{devices}:cpu")
    kind = cluster.types[0]
    assert without(cluster, {kind: taken}).count(kind) == max(0, nodes * devices - taken)
