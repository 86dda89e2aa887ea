from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.curve import Ladder, ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.core.plan import Resize, Start
from melodeon.sched.edf import Edf
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sched.greedy import Climber, Step, climb, steps_of
from melodeon.sched.reserve import reserve_for
from melodeon.sched.tick import TickState, tick
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.incidents import Incident
from melodeon.sim.metrics import summarize
from tests.sched.draws import GPU, clusters, job, job_lists, overheads, view_of

FREE = Overheads.none()
JOB, LEVEL, VALUE = 1, 2, 4
"""Where they stand in a step."""
HALVES = ScalingCurve(((1, 1.0), (2, 1.5), (4, 2.0)))


def judged(jobs: list[JobSpec], cluster: str = "1x4", **options: int) -> list[bool]:
    view = view_of(Cluster.parse(cluster), [JobState(spec) for spec in jobs], overheads=FREE)
    return [v.admitted for v in tick(view, ElasticFlow(**options), TickState()).verdicts]  # type: ignore[arg-type]


@settings(max_examples=120)
@given(job_lists(most=22), clusters, overheads, st.sampled_from([0.0, 60.0, 240.0]), st.integers(0, 1))
def test_an_admitted_deadline_is_met_when_curves_are_exact_and_nothing_fails(
    jobs: list[JobSpec], cluster: Cluster, costs: Overheads, slot_s: float, spare: int
) -> None:
    config = SimConfig(cluster=cluster, slot_s=slot_s, overheads=costs)
    result = Simulation(config, jobs, ElasticFlow(spare_pauses=spare, quote=False)).run().result()
    assert summarize(result).num_missed == 0


@settings(max_examples=40)
@given(job_lists(most=14), overheads, st.sampled_from([0.0, 60.0]), st.floats(0.2, 3.0))
def test_an_admitted_deadline_is_met_on_a_mixed_cluster(
    jobs: list[JobSpec], costs: Overheads, slot_s: float, factor: float
) -> None:
    cluster = Cluster.parse("1x4:A100,2x2:T4")
    mixed = [
        replace(spec, curves=tuple((kind, _scaled(spec.curves[0][1], rate)) for kind, rate in kinds))
        for index, spec in enumerate(jobs)
        for kinds in [[(DeviceType("A100"), 1.0), (DeviceType("T4"), factor)][: 1 + index % 3]]
    ]
    config = SimConfig(cluster=cluster, slot_s=slot_s, overheads=costs)
    result = Simulation(config, mixed, ElasticFlow(quote=False)).run().result()
    assert summarize(result).num_missed == 0


def _scaled(curve: ScalingCurve, factor: float) -> ScalingCurve:
    return ScalingCurve(tuple((workers, rate * factor) for workers, rate in curve.points))


@settings(max_examples=40)
@given(job_lists(most=8, hard_only=True), st.sampled_from([0.0, 60.0]))
def test_the_deadline_that_a_refusal_names_is_accepted(jobs: list[JobSpec], slot_s: float) -> None:
    cluster, policy = Cluster.parse("1x4"), ElasticFlow()
    at_once = [replace(spec, submit_s=0.0, deadline_s=(spec.deadline_s or 0.0) - spec.submit_s) for spec in jobs]
    view = view_of(cluster, [JobState(spec) for spec in at_once], slot_s=slot_s)
    round_ = tick(view, policy, TickState())
    in_view: dict[JobId, JobState] = {}
    memory: object = None
    for name in [verdict.job for verdict in round_.verdicts if verdict.admitted]:
        verdict, memory = policy.admit(view_of(cluster, in_view, slot_s=slot_s), view.jobs[name], memory)
        assert verdict.admitted
        in_view[name] = structs.replace(view.jobs[name], admitted_s=0.0)
    for verdict in round_.verdicts:
        if not verdict.admitted and verdict.earliest_deadline_s is not None:
            spec = replace(view.jobs[verdict.job].spec, deadline_s=verdict.earliest_deadline_s)
            assert verdict.earliest_deadline_s > (view.jobs[verdict.job].spec.deadline_s or 0.0)
            # Jobs judged after the refusal may have taken the room since; with none it must be accepted.
            if verdict.job == round_.verdicts[-1].job:
                again, _ = policy.admit(view_of(cluster, in_view, slot_s=slot_s), JobState(spec), memory)
                assert again.admitted


def test_a_refusal_says_what_would_have_been_accepted() -> None:
    view = view_of(Cluster.parse("1x4"), [JobState(job("a", 1000.0, HALVES, deadline_s=300.0))], overheads=FREE)
    (verdict,) = tick(view, ElasticFlow(), TickState()).verdicts
    assert not verdict.admitted
    assert verdict.earliest_deadline_s == pytest.approx(500.0, rel=0.01)
    assert "needs 500 s and has 300" in verdict.why
    assert tick(view, ElasticFlow(quote=False), TickState()).verdicts[0].earliest_deadline_s is None


def test_a_refusal_blames_promises_only_where_they_are_in_the_way() -> None:
    fast, linear = DeviceType("A100"), ScalingCurve.linear(1.0, 8)
    # On 8 devices, or on the type that is not there, it would be in time: the cluster has 4, and perhaps a reserve.
    spec = replace(job("a", 1000.0, linear, deadline_s=200.0), curves=((fast, linear), (GPU, linear)))
    for options, needed in (({}, 250), ({"reserve": 2}, 500)):
        view = view_of(Cluster.parse("1x4"), [JobState(spec)], overheads=FREE)
        (verdict,) = tick(view, ElasticFlow(**options), TickState()).verdicts
        assert verdict.why == f"even alone at its best speed it needs {needed} s and has 200"
    view = view_of(Cluster.parse("1x4"), [JobState(spec)], overheads=FREE)
    (verdict,) = tick(view, ElasticFlow(reserve=4), TickState()).verdicts
    assert verdict.why == "it needs at least 1 device, and no type has so many that may be promised now"
    both = [job("first", 300.0, linear, deadline_s=100.0), job("second", 300.0, linear, deadline_s=100.0)]
    view = view_of(Cluster.parse("1x4"), [JobState(spec) for spec in both], overheads=FREE)
    assert "beside those promised before" in tick(view, ElasticFlow(), TickState()).verdicts[1].why


def test_a_refusal_that_only_the_safety_margin_causes_says_so() -> None:
    linear = ScalingCurve.linear(1.0, 8)
    view = view_of(Cluster.parse("1x8"), [JobState(job("a", 28_800.0, linear, deadline_s=3600.0))], overheads=FREE)
    (verdict,) = tick(view, ElasticFlow(), TickState()).verdicts
    assert verdict.why == "even alone it would have 0 s to spare, less than is kept for pauses and rounding"
    view = view_of(Cluster.parse("1x8"), [JobState(job("a", 28_803.2, linear, deadline_s=3600.0))], overheads=FREE)
    (verdict,) = tick(view, ElasticFlow(), TickState()).verdicts
    assert verdict.why == "even alone at its best speed it needs 3601 s and has 3600"


def test_figure_3_both_deadlines_are_met_of_which_edf_misses_the_second() -> None:
    # 3 units of work each, 1 a unit of time on one device and 1.5 on two; deadlines at 3 and 3.5 units, of a minute.
    curve = ScalingCurve(((1, 1 / 60), (2, 1.5 / 60)))
    jobs = [job(name, 3.0, curve, deadline_s=60.0 * due + 1e-3) for name, due in (("a", 3), ("b", 3.5))]
    config = SimConfig(cluster=Cluster.parse("1x2"), overheads=FREE)
    for policy, in_time in ((Edf(), [True, False]), (ElasticFlow(), [True, True])):
        assert [o.in_time for o in Simulation(config, jobs, policy).run().result().outcomes] == in_time
    view = view_of(Cluster.parse("1x2"), [JobState(spec) for spec in jobs], overheads=FREE)
    shares = tick(view, ElasticFlow(), TickState()).plan.shares.values()
    assert [share.num_devices for share in shares] == [1, 1]


def test_one_infeasible_job_does_not_take_others_of_its_slot_with_it() -> None:
    jobs = [job("a", 1e9, HALVES, deadline_s=100.0), job("b", 100.0, HALVES, deadline_s=100.0)]
    assert judged(jobs) == [False, True]


def test_a_newcomer_with_an_earlier_deadline_moves_the_others_if_they_stay_in_time() -> None:
    linear = ScalingCurve.linear(1.0, 4)
    slack = job("slack", 400.0, linear, deadline_s=200.0)
    tight = job("tight", 380.0, linear, deadline_s=100.0)
    assert judged([slack, tight]) == [True, True]
    assert judged([slack, tight, job("over", 100.0, linear, deadline_s=200.0)]) == [True, True, False]


def test_best_effort_and_soft_jobs_are_always_admitted_and_never_cost_a_promise() -> None:
    linear = ScalingCurve.linear(1.0, 4)
    greedy = job("greedy", 1e6, linear)
    soft = job("soft", 1e6, linear, deadline_s=50.0, goal=Goal.SOFT)
    hard = job("hard", 398.0, linear, deadline_s=100.0)
    assert judged([greedy, soft, hard]) == [True, True, True]
    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=FREE)
    summary = summarize(Simulation(config, [greedy, soft, hard], ElasticFlow()).run().result())
    assert (summary.num_missed, summary.num_soft_missed, summary.num_unfinished) == (0, 1, 0)


def climbed(climbers: list[Climber], free: int, may_climb: Callable[[JobId, int], bool]) -> dict[str, Step]:
    steps = [s for rank, c in enumerate(climbers) for s in steps_of(JobId(str(rank)), c)]
    return {str(job): step for job, step in climb(steps, free, may_climb).items()}


def test_free_devices_go_where_they_return_most() -> None:
    steep, flat = ScalingCurve.linear(1.0, 4).ladder(), HALVES.ladder()
    pair = [Climber(flat, 1, 1.0, 0), Climber(steep, 1, 1.0, 0)]
    some = climbed(pair, 3, lambda *_: True)
    assert some.keys() == {"1"}
    assert (steep.levels[some["1"][LEVEL] - 1], some["1"][VALUE]) == (4, 0.0)
    everything = climbed(pair, 6, lambda *_: True)
    assert [flat.levels[everything["0"][LEVEL] - 1], steep.levels[everything["1"][LEVEL] - 1]] == [4, 4]
    assert everything["1"][VALUE] > everything["0"][VALUE]


def test_a_rigid_job_stays_or_asks() -> None:
    ladder = ScalingCurve.linear(1.0, 8).ladder()
    asked: list[int] = []

    def refuse(_: JobId, level: int) -> bool:
        asked.append(level)
        return False

    stays = climbed([Climber(ladder, 1, 1.0, 4, rigid=True)], 7, refuse)
    assert (stays["0"][LEVEL], asked) == (3, [4])
    assert not climbed([Climber(ladder, 1, 1.0, 4, rigid=True)], 2, refuse), "there is no stopping on the way"


climbers = st.builds(
    Climber,
    st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5).map(
        lambda rates: Ladder(tuple(1 << k for k in range(len(rates))), tuple(sorted(rates)))
    ),
    st.just(0),
    st.floats(0.1, 5.0),
    st.sampled_from([0, 1, 2, 4]),
    st.booleans(),
)


@given(st.lists(climbers, max_size=8), st.integers(0, 40))
def test_one_sorted_pass_gives_the_best_step_that_is_left_again_and_again(jobs: list[Climber], free: int) -> None:
    chains = {JobId(str(k)): list(steps_of(JobId(str(k)), job)) for k, job in enumerate(jobs)}
    wanted: dict[JobId, Step] = {}
    left = free
    while any(chains.values()):
        step = max((chain[0] for chain in chains.values() if chain), key=lambda s: (s[VALUE], -int(s[JOB])))
        _, name, level, more, _, asks = step
        chain = chains[name]
        if more > left or (asks and level % 2):
            chain.clear()
            continue
        wanted[name] = chain.pop(0)
        left -= more
    everything = [s for k, job in enumerate(jobs) for s in steps_of(JobId(str(k)), job)]
    assert climb(everything, free, lambda _, level: level % 2 == 0) == wanted


@settings(max_examples=40)
@given(job_lists(most=12), st.sampled_from(["1x3", "3x2", "5x4", "1x7"]), overheads)
def test_shares_are_powers_of_two_where_curves_are_whatever_is_left(
    jobs: list[JobSpec], cluster: str, costs: Overheads
) -> None:
    config = SimConfig(cluster=Cluster.parse(cluster), overheads=costs)
    result = Simulation(config, jobs, ElasticFlow(quote=False)).run().result()
    given_ = [logged.action.placement for logged in result.log if isinstance(logged.action, Start | Resize)]
    assert {sum(block.size for block in placement) for placement in given_} <= {1, 2, 4, 8, 16}


@pytest.mark.parametrize(("powers", "given_to"), [(True, (3, 4, 8, 1)), (False, (3, 6, 12, 1))])
def test_shares_are_powers_of_two_or_a_job_s_own_least(powers: bool, given_to: tuple[int, ...]) -> None:
    # Devices enough for all: the first needs 3 at least and at most, the second has 6 at most, the third any of 12.
    every = ScalingCurve(tuple((n, float(n)) for n in range(1, 13)))
    jobs = [
        job("three", 1e4, every, min_workers=3, max_workers=3),
        job("six", 1e4, every, max_workers=6),
        job("twelve", 1e4, every),
        job("one", 1e4, every, max_workers=1),
    ]
    config = SimConfig(cluster=Cluster.parse("4x8"), overheads=FREE)
    result = Simulation(config, jobs, ElasticFlow(powers=powers)).run().result()
    first = {a.job: sum(b.size for b in a.placement) for a in (x.action for x in result.log) if isinstance(a, Start)}
    assert tuple(first[JobId(name)] for name in ("three", "six", "twelve", "one")) == given_to


def test_a_promise_is_put_off_by_what_its_job_trains_before() -> None:
    # 800 iterations by 1000 s: 200 s on 4 devices from 800 s on. On 2 devices from the start it never needs more.
    linear = ScalingCurve.linear(1.0, 4)
    early, tight = job("early", 800.0, linear, deadline_s=1000.0), job("tight", 790.0, linear, deadline_s=395.5)
    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=FREE)
    result = Simulation(config, [early, tight], ElasticFlow()).run().result()
    assert summarize(result).num_missed == 0
    assert len(result.decision_s) <= 4


def test_a_reserve_keeps_promises_when_a_node_fails() -> None:
    linear = ScalingCurve.linear(1.0, 8)
    cluster = Cluster.parse("2x4")
    jobs = [job(f"j{i}", 1000.0, linear, deadline_s=1100.0) for i in range(8)]
    failure = (Incident(100.0, cluster.nodes[0].id, up=False),)
    config = SimConfig(cluster=cluster, overheads=FREE, incidents=failure)
    kept = summarize(Simulation(config, jobs, ElasticFlow(reserve=4)).run().result())
    lost = summarize(Simulation(config, jobs, ElasticFlow()).run().result())
    assert (kept.num_rejected, kept.num_missed) == (4, 0)
    assert lost.num_missed > 0
    assert kept.utilisation > 0.5, "the reserve is used, only not promised"


def test_a_late_job_does_not_keep_newcomers_out() -> None:
    linear = ScalingCurve.linear(1.0, 4)
    cluster = Cluster.parse("2x4")
    doomed = job("doomed", 4.0 * 1000, linear, deadline_s=1000.0 + 1e-3, max_workers=4)
    other = job("other", 4.0 * 1000, linear, deadline_s=1000.0 + 1e-3, max_workers=4)
    newcomer = job("newcomer", 100.0, linear, submit_s=500.0, deadline_s=700.0)
    incidents = (Incident(100.0, cluster.nodes[0].id, up=False), Incident(400.0, cluster.nodes[0].id))
    config = SimConfig(cluster=cluster, overheads=FREE, incidents=incidents)
    result = Simulation(config, [doomed, other, newcomer], ElasticFlow()).run().result()
    outcomes = {o.id: o for o in result.outcomes}
    assert outcomes[JobId("newcomer")].in_time
    assert sum(o.admitted and not o.in_time for o in result.outcomes) == 1


def test_each_job_stays_on_a_type_that_it_can_run_on() -> None:
    fast, slow = DeviceType("A100"), DeviceType("T4")
    both = replace(job("both", 500.0, HALVES, deadline_s=1000.0), curves=((fast, HALVES), (slow, HALVES)))
    only = replace(job("only", 500.0, HALVES, deadline_s=1000.0), curves=((slow, HALVES),))
    none = replace(job("none", 500.0, HALVES, deadline_s=1000.0), curves=((DeviceType("K80"), HALVES),))
    view = view_of(Cluster.parse("1x1:A100,1x4:T4"), [JobState(spec) for spec in (both, only, none)])
    round_ = tick(view, ElasticFlow(), TickState())
    assert [v.admitted for v in round_.verdicts] == [True, True, False]
    assert {kind for kind, _ in round_.plan.shares[JobId("only")].counts} == {slow}
    assert "K80, which this cluster does not have" in round_.verdicts[2].why


def test_the_reserve_for_a_risk_is_the_binomial_quantile() -> None:
    cluster = Cluster.parse("10x8")
    kind = cluster.types[0]
    assert reserve_for(cluster, kind, mean_up_s=1e9, mean_repair_s=1.0) == 0
    # Each node is down a tenth of the time: more than 3 of 10 at once with probability 0.0128.
    assert reserve_for(cluster, kind, mean_up_s=9.0, mean_repair_s=1.0, risk=0.02) == 24
    with pytest.raises(UsageError, match="risk"):
        reserve_for(cluster, kind, mean_up_s=9.0, mean_repair_s=1.0, risk=2.0)


@pytest.mark.parametrize("busy_s", [30.0, 600.0, 10_000.0, 1e6])
def test_a_refusal_by_a_full_cluster_names_its_earliest_deadline_however_small_the_job(busy_s: float) -> None:
    linear = ScalingCurve.linear(1.0, 4)
    full, small = job("full", 4 * busy_s, linear, deadline_s=busy_s + 1), job("small", 40.0, linear, deadline_s=11.0)
    view = view_of(Cluster.parse("1x4"), [JobState(full), JobState(small)], overheads=FREE)
    found = tick(view, ElasticFlow(), TickState()).verdicts[1].earliest_deadline_s
    assert found is not None
    # All four devices are promised until then, and it needs 10 s of them.
    assert found == pytest.approx(busy_s + 10, rel=0.015, abs=2)
    assert judged([full, replace(small, deadline_s=found)]) == [True, True]
    assert judged([full, replace(small, deadline_s=0.97 * found)]) == [True, False]


@pytest.mark.parametrize(("first_start", "earliest"), [(False, 10.0), (True, 18.0)])
def test_a_refusal_by_an_empty_cluster_counts_a_pause_only_where_starting_costs_one(
    first_start: bool, earliest: float
) -> None:
    spec = job("a", 40.0, ScalingCurve.linear(1.0, 4), deadline_s=5.0)
    view = view_of(Cluster.parse("1x4"), [JobState(spec)], overheads=Overheads(first_start=first_start))
    (verdict,) = tick(view, ElasticFlow(), TickState()).verdicts
    assert verdict.earliest_deadline_s == pytest.approx(earliest, rel=0.01)


def test_a_refusal_names_no_deadline_before_the_one_that_was_refused() -> None:
    # With slots nothing is left beside "full" up to 2 s, although the job would be done after 1 s.
    linear = ScalingCurve.linear(1.0, 4)
    jobs = [job("full", 80_000.0, linear, deadline_s=20_002.0), job("small", 4.0, linear, deadline_s=2.0)]
    view = view_of(Cluster.parse("1x4"), [JobState(spec) for spec in jobs], overheads=FREE, slot_s=60.0)
    verdict = tick(view, ElasticFlow(), TickState()).verdicts[1]
    assert not verdict.admitted
    assert verdict.earliest_deadline_s == pytest.approx(20_003.0, rel=0.015)
