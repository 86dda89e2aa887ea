from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.easyscale import EasyScaleHeter, EasyScaleHomo
from melodeon.sched.easyscale_job import Limits, outlook_of, plan_on, proposals
from melodeon.sched.policy import Decision, Policy
from melodeon.sched.tick import TickState, tick
from melodeon.sched.yarn_cs import YarnCs
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.incidents import random_failures, straggler
from tests.sched.draws import view_of

V100, P100, T4 = DeviceType("V100"), DeviceType("P100"), DeviceType("T4")
SPEED = {V100: 2.45, P100: 1.5, T4: 1.0}


def stepped(rate: float, virtual_workers: int) -> ScalingCurve:
    return ScalingCurve(tuple((n, rate / -(-virtual_workers // n)) for n in range(1, virtual_workers + 1)))


def job(name: str, virtual_workers: int, *kinds: DeviceType, **values: object) -> JobSpec:
    defaults: dict[str, object] = {
        "id": JobId(name),
        "iterations": 100.0,
        "curves": tuple((kind, stepped(SPEED[kind], virtual_workers)) for kind in kinds or (V100,)),
        "goal": Goal.BEST_EFFORT,
        "requested_workers": virtual_workers,
        "max_workers": virtual_workers,
        "virtual_workers": virtual_workers,
    }
    return JobSpec(**(defaults | values))  # type: ignore[arg-type]


def shares(policy: Policy, jobs: list[JobSpec | JobState], cluster: str) -> dict[str, dict[str, int]]:
    states = [entry if isinstance(entry, JobState) else JobState(entry, admitted_s=0.0) for entry in jobs]
    round_ = tick(view_of(Cluster.parse(cluster), states), policy, TickState())
    return {name: dict(share.counts) for name, share in round_.plan.shares.items()}


# --- what the rules give ---


def test_every_waiting_job_gets_one_device_before_anybody_gets_two() -> None:
    jobs: list[JobSpec | JobState] = [job("a", 4), job("b", 4), job("c", 4)]
    assert shares(EasyScaleHeter(), jobs, "1x3:V100") == {"a": {V100: 1}, "b": {V100: 1}, "c": {V100: 1}}
    # One more: all gain the same from it (4 virtual workers in 2 turns instead of 4), so the first submitted grows.
    assert shares(EasyScaleHeter(), jobs, "1x4:V100") == {"a": {V100: 2}, "b": {V100: 1}, "c": {V100: 1}}


def test_a_job_that_names_no_virtual_workers_has_as_many_as_it_requested() -> None:
    # Traces of other systems tell what a user asked for (maxP), and the model was measured on more devices than that.
    unnamed = replace(job("a", 16), requested_workers=2, max_workers=None, virtual_workers=None)
    assert shares(EasyScaleHomo(), [unnamed], "2x8:V100") == {"a": {V100: 2}}
    assert shares(EasyScaleHeter(), [unnamed], "2x8:V100") == {"a": {V100: 2}}
    # A bound of its own counts before that.
    assert shares(EasyScaleHeter(), [replace(unnamed, max_workers=4)], "2x8:V100") == {"a": {V100: 4}}


def test_devices_go_where_each_speeds_up_most() -> None:
    flat = ScalingCurve(((1, 1.0), (2, 1.1), (4, 1.2)))
    jobs: list[JobSpec | JobState] = [job("flat", 4, curves=((V100, flat),)), job("steep", 4)]
    # A third device is of no use to four virtual workers on two; a fourth with it is.
    assert shares(EasyScaleHeter(), jobs, "1x4:V100") == {"flat": {V100: 2}, "steep": {V100: 2}}
    assert shares(EasyScaleHeter(), jobs, "1x5:V100") == {"flat": {V100: 1}, "steep": {V100: 4}}


def test_proposals_are_ordered_and_of_equal_gain_the_larger_comes_first() -> None:
    outlook = outlook_of(job("a", 16), (V100,))
    now = plan_on(outlook, ((V100, 4),))
    limits = Limits(max_waste=0.3, growth=2.0, top_k=9, mixed=True)
    found = proposals(outlook, now, {V100: 16}, limits)
    # 6 devices: 3 turns instead of 4, a sixth each; 8: 2 turns, a quarter each; 5 and 7 are no faster than 4 and 6.
    assert [(p.more, round(p.gain, 4)) for p in found] == [(4, 0.25), (2, 0.1667)]
    even = outlook_of(job("b", 4, curves=((V100, ScalingCurve.linear(1.0, 4)),)), (V100,))
    both = proposals(even, plan_on(even, ((V100, 1),)), {V100: 4}, Limits(0.3, 4.0, 9, True))
    assert [p.more for p in both if round(p.gain, 9) == 1.0] == [3, 1]
    assert proposals(outlook, now, {V100: 16}, Limits(0.3, 2.0, 1, True)) == found[:1]
    assert not proposals(outlook, now, {V100: 16}, limits, barred={((V100, 6),), ((V100, 8),)})


def test_wasteful_configurations_are_ruled_out() -> None:
    jobs: list[JobSpec | JobState] = [job("a", 4)]
    # 3 devices would take 2 turns, as 2 do; 4 is out of reach.
    assert shares(EasyScaleHeter(), jobs, "1x3:V100") == {"a": {V100: 2}}
    # 5 virtual workers on 3 devices: 2 turns instead of 3, at 1 - 5/6 wasted.
    assert shares(EasyScaleHeter(), [job("a", 5)], "1x3:V100") == {"a": {V100: 3}}
    assert shares(EasyScaleHeter(max_waste=0.1), [job("a", 5)], "1x3:V100") == {"a": {V100: 1}}


def test_heter_mixes_types_and_homo_does_not() -> None:
    cluster = "1x2:V100,1x2:T4"
    both = [job("a", 14, V100, T4)]
    assert shares(EasyScaleHomo(), list(both), cluster) == {"a": {V100: 2}}
    assert shares(EasyScaleHeter(), list(both), cluster) == {"a": {V100: 2, T4: 2}}
    assert shares(EasyScaleHeter(), [job("a", 14, V100)], cluster) == {"a": {V100: 2}}, "no curve, no device"


def test_homo_waits_for_its_own_type_unless_any_will_do_and_then_stays() -> None:
    config = SimConfig(cluster=Cluster.parse("1x1:V100,1x2:T4"), overheads=Overheads.none())
    jobs = [job("a", 2, V100, T4, iterations=122.5), job("b", 2, V100, T4, iterations=100.0)]
    strict = Simulation(config, jobs, EasyScaleHomo()).run().result()
    assert [o.started_s for o in strict.outcomes] == pytest.approx([0.0, 100.0])
    loose = Simulation(config, jobs, EasyScaleHomo(any_type=True)).run().result()
    assert [o.finished_s for o in loose.outcomes] == pytest.approx([100.0, 100.0])
    assert loose.outcomes[1].num_resizes == 0, "b stays on T4 when the V100 is free"


def test_idle_devices_are_released_when_faster_ones_come() -> None:
    waiting = [JobState(job("a", 2, V100, T4), 0.0, counts=((T4, 1),))]
    # One virtual worker on each V100 is done long before one on the T4.
    assert shares(EasyScaleHeter(), list(waiting), "1x2:V100,1x1:T4") == {"a": {V100: 2}}


def test_a_minimum_is_waited_for_or_guaranteed() -> None:
    running = JobState(job("a", 8), 0.0, counts=((V100, 8),))
    newcomer = JobState(job("b", 4, min_workers=2), 0.0)
    later = JobState(job("c", 4), 0.0)
    kept = shares(EasyScaleHeter(), [running, newcomer, later], "1x8:V100")
    assert kept == {"a": {V100: 8}}
    given_ = shares(EasyScaleHeter(guarantee=True), [running, newcomer, later], "1x8:V100")
    assert given_ == {"a": {V100: 4}, "b": {V100: 2}, "c": {V100: 2}}


def test_nobody_passes_a_waiting_job_on_the_types_that_it_waits_for() -> None:
    running = JobState(job("a", 3), 0.0, counts=((V100, 3),))
    head = JobState(job("b", 4, min_workers=2), 0.0)
    later = JobState(job("c", 4), 0.0)
    other = JobState(job("d", 1, T4), 0.0)
    found = shares(EasyScaleHeter(), [running, head, later, other], "1x4:V100,1x1:T4")
    assert found == {"a": {V100: 3}, "d": {T4: 1}}


def test_a_job_that_became_slower_goes_back_and_does_not_try_again() -> None:
    hump = ScalingCurve(((1, 1.0), (2, 1.5), (4, 1.4)))
    spec = job("a", 4, curves=((V100, hump),), iterations=1500.0)
    config = SimConfig(cluster=Cluster.parse("1x4:V100"), overheads=Overheads.none())
    blind = Simulation(config, [spec], EasyScaleHeter(linear=True, trial_s=10.0)).run().result()
    sizes = [sum(block.size for block in entry.action.placement) for entry in blind.log]  # type: ignore[union-attr]
    assert sizes == [1, 2, 4, 2], "by the speed of one device alone four look best, until they are tried"
    assert blind.outcomes[0].finished_s == pytest.approx(30 + (1500 - 10 * (1.0 + 1.5 + 1.4)) / 1.5)
    running = JobState(spec, 0.0, counts=((V100, 2),))
    policy, state = EasyScaleHeter(linear=True, trial_s=60.0, growth=4.0), TickState()
    cluster = Cluster.parse("1x4:V100")
    grown = tick(view_of(cluster, [running]), policy, state)
    assert grown.plan.shares[JobId("a")].counts == ((V100, 4),)
    assert grown.wake_at == 60.0
    tried = JobState(spec, 0.0, counts=((V100, 4),))
    back = tick(view_of(cluster, [tried], 60.0), policy, grown.state)
    assert back.plan.shares[JobId("a")].counts == ((V100, 2),)
    assert "made it slower" in back.plan.shares[JobId("a")].why
    stays = tick(view_of(cluster, [running], 120.0), policy, back.state)
    assert stays.plan.shares[JobId("a")].counts == ((V100, 2),)
    seeing = EasyScaleHeter()
    assert tick(view_of(cluster, [running]), seeing, TickState()).plan.shares[JobId("a")].counts == ((V100, 2),)


def test_a_job_that_was_taken_over_on_another_type_does_not_go_back_to_it() -> None:
    # Another policy had it on the T4, on which it is faster; its own type is V100.
    curves = ((V100, stepped(1.0, 2)), (T4, stepped(10.0, 2)))
    taken_over = JobState(job("a", 2, curves=curves), admitted_s=0.0, counts=((T4, 1),), started_s=0.0)
    cluster, policy, state = Cluster.parse("1x2:V100,1x1:T4"), EasyScaleHomo(), None
    for _ in range(3):
        decided = policy.decide(view_of(cluster, [taken_over]), state)
        assert decided.shares[JobId("a")].counts == ((V100, 2),)
        taken_over, state = structs.replace(taken_over, counts=((V100, 2),)), decided.state


def test_a_straggler_among_the_new_devices_makes_the_job_fall_back() -> None:
    spec = job("a", 4, iterations=5000.0)
    cluster = Cluster.parse("4x1:V100")
    policy = EasyScaleHeter()
    grown = tick(view_of(cluster, [JobState(spec, 0.0, counts=((V100, 2),))]), policy, TickState())
    assert grown.plan.shares[JobId("a")].counts == ((V100, 4),)
    slow = JobState(spec, 0.0, counts=((V100, 4),), speed=0.4)
    back = tick(view_of(cluster, [slow], 5.0), policy, grown.state)
    assert back.plan.shares[JobId("a")].counts == ((V100, 2),)
    incidents = straggler(cluster.nodes[3].id, from_s=10.0, until_s=500.0, speed=0.4)
    config = SimConfig(cluster=cluster, incidents=incidents)
    assert Simulation(config, [spec], policy).run().result().outcomes[0].finished_s is not None


def test_every_share_says_why() -> None:
    view = view_of(
        Cluster.parse("1x2:V100,1x2:T4"), [JobState(job("a", 14, V100, T4), 0.0), JobState(job("b", 1), 0.0)]
    )
    whys = [share.why for share in EasyScaleHeter().decide(view, None).shares.values()]
    assert whys[0].startswith("each of ")
    assert "the best offer for them: " in whys[0]
    assert whys[1] == "number 2 of the queue, and the least it runs on is free: 1 V100 x 1"


@pytest.mark.parametrize(
    "changes", [{"max_waste": 1.0}, {"top_k": 0}, {"growth": 1.0}, {"tolerance": -0.1}, {"linear": True}]
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        EasyScaleHomo(**changes)  # type: ignore[arg-type]


# --- YARN's capacity scheduler ---


def test_yarn_gives_all_of_one_type_or_nothing_and_nobody_passes() -> None:
    cluster = "1x4:V100,1x4:T4"
    jobs: list[JobSpec | JobState] = [job("a", 3, V100, T4), job("b", 2, V100, T4), job("c", 2, T4)]
    assert shares(YarnCs(), jobs, cluster) == {"a": {V100: 3}}
    assert shares(YarnCs(queue_by_type=True), jobs, cluster) == {"a": {V100: 3}, "c": {T4: 2}}


def test_yarn_one_at_a_time_leaves_the_rest_of_the_cluster_idle() -> None:
    jobs: list[JobSpec | JobState] = [job("a", 1), job("b", 1)]
    assert shares(YarnCs(), jobs, "1x4:V100") == {"a": {V100: 1}, "b": {V100: 1}}
    assert shares(YarnCs(one_at_a_time=True), jobs, "1x4:V100") == {"a": {V100: 1}}
    big: list[JobSpec | JobState] = [job("a", 8)]
    assert shares(YarnCs(), big, "1x4:V100") == {"a": {V100: 4}}, "as many as there are"


# --- laws ---


class Watched:
    """A policy whose every decision is checked against the laws of typed clusters."""

    def __init__(self, inner: EasyScaleHeter) -> None:
        self.inner = inner

    def decide(self, view, state) -> Decision:  # type: ignore[no-untyped-def]
        decision = self.inner.decide(view, state)
        assert self.inner.decide(view, state) == decision
        used: dict[DeviceType, int] = {}
        for name, share in decision.shares.items():
            spec = view.jobs[name].spec
            assert share.num_devices >= spec.min_workers
            assert share.num_devices <= (spec.max_workers or 64)
            assert self.inner.mixed or len(share.counts) == 1
            outlook = outlook_of(spec, [kind for kind, _ in share.counts], linear=self.inner.linear)
            plan = plan_on(outlook, share.counts)
            assert plan.counts == share.counts, "nothing idle is held"
            assert sum(map(sum, plan.assignment())) == spec.virtual_workers
            assert plan.waste >= 0
            if not self.inner.linear:
                assert plan.rate == pytest.approx(spec.rate(share.counts)), "the model is what the simulator runs"
            for kind, count in share.counts:
                used[kind] = used.get(kind, 0) + count
        assert all(count <= view.cluster.count(kind) for kind, count in used.items())
        return decision


@st.composite
def typed_jobs(draw: st.DrawFn) -> list[JobSpec]:
    specs = []
    for index in range(draw(st.integers(1, 8))):
        virtual_workers = draw(st.integers(1, 12))
        kinds = draw(st.permutations([V100, P100, T4]))[: draw(st.integers(1, 3))]
        specs.append(
            job(
                f"j{index}",
                virtual_workers,
                *kinds,
                submit_s=float(draw(st.integers(0, 300))),
                iterations=float(draw(st.integers(1, 400))),
                min_workers=draw(st.integers(1, min(2, virtual_workers))),
            )
        )
    return specs


policies = st.one_of(
    st.builds(EasyScaleHeter, guarantee=st.booleans(), top_k=st.integers(1, 4)),
    st.builds(EasyScaleHeter, guarantee=st.booleans(), linear=st.booleans(), trial_s=st.just(20.0)),
    st.builds(EasyScaleHomo, guarantee=st.booleans(), any_type=st.booleans(), growth=st.sampled_from([1.5, 2.0, 8.0])),
)


@settings(max_examples=60)
@given(typed_jobs(), policies, st.integers(0, 3))
def test_laws_hold_on_typed_clusters_and_every_job_ends(jobs: list[JobSpec], policy: EasyScaleHeter, seed: int) -> None:
    cluster = Cluster.parse("2x4:V100,2x2:P100,1x3:T4")
    failures = random_failures(cluster, mean_up_s=400, mean_repair_s=60, until_s=900, seed=seed) if seed else ()
    result = Simulation(SimConfig(cluster=cluster, incidents=failures), jobs, Watched(policy)).run().result()
    assert all(outcome.finished_s is not None for outcome in result.outcomes)


@given(typed_jobs(), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_proposals_keep_to_what_is_free_and_to_the_rules(jobs: list[JobSpec], v100: int, p100: int, t4: int) -> None:
    free, limits = {V100: v100, P100: p100, T4: t4}, Limits(0.3, 3.0, 5, True)
    for spec in jobs:
        outlook = outlook_of(spec, (V100, P100, T4))
        now = plan_on(outlook, ((outlook.kinds[0], spec.min_workers),))
        found = proposals(outlook, now, free, limits)
        assert list(found) == sorted(found, key=lambda p: (-round(p.gain, 9), -p.more))
        for proposal in found:
            assert proposal.more <= free[proposal.kind]
            assert proposal.plan.waste_norm <= 0.3 + 1e-6
            assert proposal.plan.rate > now.rate
            assert proposal.plan.num_devices <= outlook.max_devices
