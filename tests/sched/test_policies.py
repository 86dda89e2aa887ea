"""What every policy must keep to, whatever it optimises. A new policy is tested here by being registered."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.policy import Decision
from melodeon.sched.registry import POLICIES, make_policy
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.incidents import random_failures
from tests.sched.draws import clusters, job_lists, overheads


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


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'elastikflow' is not known: did you mean 'elasticflow'"):
        make_policy("elastikflow")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UsageError, match="'elasticflow' does not take \\['colour'\\]"):
        make_policy("elasticflow", colour="red")
