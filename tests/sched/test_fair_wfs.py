"""VirtualFlow's weighted fair sharing and the static priorities it is compared with."""

from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.fairshare import Claim, fair_shares
from melodeon.sched.policy import Policy
from melodeon.sched.priority import Priority
from melodeon.sched.tick import TickState, tick
from melodeon.sched.wfs import Wfs
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import GPU, clusters, job, job_lists, view_of

LINEAR = ScalingCurve.linear(1.0, 16)
weights = st.sampled_from([0.5, 1.0, 2.0, 5.0, 10.0])
claims = st.builds(
    lambda weight, least, more: Claim(weight, least, least + more), weights, st.integers(0, 4), st.integers(0, 40)
)


def shares(policy: Policy, states: list[JobState], devices: int) -> dict[str, int]:
    found = tick(view_of(Cluster.parse(f"1x{devices}"), states), policy, TickState()).plan.shares
    return {name: share.num_devices for name, share in found.items()}


def held(spec: JobSpec, devices: int) -> JobState:
    return JobState(spec, admitted_s=0.0, counts=((GPU, devices),), placement=(), started_s=0.0)


@given(st.integers(0, 200), st.lists(claims, min_size=1, max_size=12))
def test_fair_shares_keep_bounds_waste_nothing_and_are_max_min_fair(capacity: int, asked: list[Claim]) -> None:
    found = fair_shares(capacity, asked)
    if found is None:
        assert sum(claim.least for claim in asked) > capacity
        return
    assert all(claim.least <= count <= claim.most for claim, count in zip(asked, found, strict=True))
    assert sum(found) == min(capacity, sum(claim.most for claim in asked))
    for a, has_a in zip(asked, found, strict=True):
        for b, has_b in zip(asked, found, strict=True):
            if has_a > a.least and has_b < b.most:
                assert has_a / a.weight <= (has_b + 1) / b.weight * (1 + 1e-9), "a device would do more good at b"


@given(st.lists(weights, min_size=1, max_size=8), st.integers(8, 200))
def test_shares_are_proportional_to_weights_when_everybody_wants_everything(heavy: list[float], devices: int) -> None:
    jobs = [job(f"j{i}", 100.0, LINEAR, requested_workers=1000, weight=w) for i, w in enumerate(heavy)]
    found = shares(Wfs(), [JobState(spec) for spec in jobs], devices)
    assert sum(found.values()) == devices
    for spec in jobs:
        exact = devices * spec.weight / sum(heavy)
        assert found[spec.id] >= max(1, int(exact) - len(heavy)), "nobody is far below its part"
        if min(devices * w / sum(heavy) for w in heavy) >= 1:
            assert found[spec.id] >= int(exact + 1e-9), "and with room for all never below its whole devices"


def test_a_weight_may_be_as_large_as_numbers_are() -> None:
    states = [
        JobState(job(name, 10.0, LINEAR, requested_workers=8, weight=w)) for name, w in (("a", 1e308), ("b", 1.0))
    ]
    assert shares(Wfs(), states, 8) == {"a": 7, "b": 1}


@settings(max_examples=50)
@given(job_lists(most=10), clusters)
def test_no_device_is_idle_while_a_job_waits(jobs: list[JobSpec], cluster: Cluster) -> None:
    found = tick(view_of(cluster, [JobState(spec) for spec in jobs]), Wfs(), TickState()).plan.shares
    used = sum(share.num_devices for share in found.values())
    assert used == min(cluster.num_devices, sum(spec.requested_workers for spec in jobs))


def test_a_newcomer_shrinks_jobs_of_lower_but_not_of_higher_priority() -> None:
    low = job("low", 100.0, LINEAR, requested_workers=4, weight=1.0)
    high = job("high", 100.0, LINEAR, requested_workers=4, weight=10.0)
    assert shares(Wfs(), [held(low, 4), JobState(high)], 4) == {"low": 1, "high": 3}
    assert shares(Wfs(), [held(high, 4), JobState(low)], 4) == {"high": 4}
    assert shares(Wfs(), [held(high, 3), JobState(low)], 4) == {"high": 3, "low": 1}


def test_jobs_grow_past_their_request_only_if_told_to() -> None:
    alone = [JobState(job("a", 100.0, LINEAR, requested_workers=2))]
    assert shares(Wfs(), alone, 8) == {"a": 2}
    assert shares(Wfs(beyond=True), alone, 8) == {"a": 8}


def three_jobs(policy: Policy) -> dict[str, float]:
    """The paper's three jobs on 4 devices: 4, 2 and 4 wanted, in order of rising priority."""
    jobs = [
        job("0", 400.0, LINEAR, requested_workers=4, weight=1.0, submit_s=0.0),
        job("1", 400.0, LINEAR, requested_workers=2, weight=5.0, submit_s=10.0),
        job("2", 400.0, LINEAR, requested_workers=4, weight=10.0, submit_s=110.0),
    ]
    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=Overheads.none())
    result = Simulation(config, jobs, policy).run().result()
    return {outcome.id: outcome.finished_s or 0.0 for outcome in result.outcomes}


def test_static_priorities_leave_devices_idle_and_elastic_sharing_does_not() -> None:
    static, elastic = three_jobs(Priority()), three_jobs(Wfs())
    # Job 1 has 2 devices from 100 to 300 s while job 2, of higher priority, needs 4.
    assert static == {"0": 100.0, "1": 300.0, "2": 400.0}
    assert elastic["2"] < static["2"]
    assert max(elastic.values()) < 305.0, "1,200 device-seconds on 4 devices, none idle but at the very end"


def test_priority_takes_the_heaviest_first_and_lets_nobody_pass_it() -> None:
    jobs = [job(name, 10.0, LINEAR, requested_workers=n, weight=w) for name, n, w in (("a", 2, 1), ("b", 8, 5))]
    assert shares(Priority(), [JobState(spec) for spec in jobs], 8) == {"b": 8}
    assert shares(Priority(), [JobState(spec) for spec in jobs], 4) == {"b": 4}
    busy = held(job("c", 10.0, LINEAR, requested_workers=2), 2)
    assert shares(Priority(), [busy, *(JobState(spec) for spec in jobs)], 8) == {"c": 2}
