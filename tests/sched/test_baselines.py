from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.backfill import Backfill
from melodeon.sched.edf import Edf
from melodeon.sched.edf_admission import EdfAdmission
from melodeon.sched.edf_elastic import EdfElastic
from melodeon.sched.elastic_tiresias import ElasticTiresias
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Policy
from melodeon.sched.priority import Priority
from melodeon.sched.tick import TickState, tick
from melodeon.sched.tiresias import Tiresias
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import bounded_jobs, clusters, first_shares, job, job_lists, typed, view_of

LINEAR = ScalingCurve.linear(1.0, 8)


def test_fifo_lets_nobody_pass_the_head_of_the_queue() -> None:
    jobs = [job(name, 10.0, LINEAR, requested_workers=n) for name, n in (("a", 4), ("b", 8), ("c", 2))]
    assert first_shares(Fifo(), jobs) == {"a": 4}


def test_edf_gives_the_earliest_deadline_as_much_as_helps() -> None:
    flat = ScalingCurve(((1, 1.0), (2, 1.5), (4, 1.4)))
    jobs = [job("late", 10.0, LINEAR, deadline_s=90.0), job("soon", 10.0, flat, deadline_s=50.0)]
    assert first_shares(Edf(), jobs, "1x4") == {"soon": 2, "late": 2}
    assert first_shares(Edf(widest=True), jobs, "1x4") == {"soon": 4}


@pytest.mark.parametrize(("least", "most", "given_to"), [(1, None, 1), (3, None, 3), (3, 3, 3), (1, 3, 1)])
def test_the_widest_size_of_a_job_that_was_measured_only_outside_its_bounds_is_its_least(
    least: int, most: int | None, given_to: int
) -> None:
    wide = ScalingCurve(((8, 8.0), (16, 12.0)))
    spec = job("a", 10.0, wide, deadline_s=50.0, min_workers=least, max_workers=most)
    assert first_shares(Edf(widest=True), [spec], "1x4") == first_shares(Edf(), [spec], "1x4") == {"a": given_to}


def test_edf_runs_a_job_on_what_the_earlier_deadlines_leave() -> None:
    jobs = [job("soon", 10.0, LINEAR, deadline_s=50.0, max_workers=4), job("late", 10.0, LINEAR, deadline_s=90.0)]
    assert first_shares(Edf(), jobs) == {"soon": 4, "late": 4}
    large = [jobs[0], job("late", 10.0, LINEAR, deadline_s=90.0, min_workers=8)]
    assert first_shares(Edf(), large) == {"soon": 4}


def test_reasons_say_whether_a_job_has_all_that_helps_or_what_was_free() -> None:
    jobs = [job("soon", 10.0, LINEAR, deadline_s=50.0, max_workers=4), job("late", 10.0, LINEAR, deadline_s=90.0)]
    view = view_of(Cluster.parse("1x8"), [JobState(spec) for spec in jobs])
    shares = tick(view, Edf(), TickState()).plan.shares.values()
    assert [share.why for share in shares] == [
        "number 1 by deadline, on all 4 that help",
        "number 2 by deadline, on what is free",
    ]
    # "soon" need not begin yet to be in time.
    shares = tick(view, EdfElastic(), TickState()).plan.shares.values()
    assert (
        next(share.why for share in shares) == "its minimum share in order of deadline is 0 now, and 4 more were left"
    )


@pytest.mark.parametrize("policy", [Backfill(), Fifo(), Priority(), Tiresias(), ElasticTiresias()])
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (8, "and what it requested is free"),
        (16, "and all 8 devices that there are, of the 16 that it requested, are free"),
    ],
)
def test_a_job_that_has_all_there_is_is_not_told_that_it_has_what_it_requested(
    policy: Policy, wanted: int, said: str
) -> None:
    view = view_of(Cluster.parse("1x8"), [JobState(job("a", 10.0, LINEAR, requested_workers=wanted), admitted_s=0.0)])
    (share,) = policy.decide(view, None).shares.values()
    assert share.why.endswith(said)


def test_edf_with_admission_counts_on_what_the_earlier_deadlines_leave() -> None:
    # "b" has 4 devices for 10 s and all 8 for the next 5 s: 80 iterations in 15 s.
    jobs = [job("a", 40.0, LINEAR, deadline_s=10.0, max_workers=4), job("b", 80.0, LINEAR, deadline_s=15.0)]
    view = view_of(Cluster.parse("1x8"), [JobState(spec) for spec in jobs], overheads=Overheads.none())
    assert [v.admitted for v in tick(view, EdfAdmission(), TickState()).verdicts] == [True, True]
    # Going from 4 to 8 devices is a pause, for which there is no time.
    paused = view_of(Cluster.parse("1x8"), [JobState(spec) for spec in jobs], overheads=Overheads())
    assert [v.admitted for v in tick(paused, EdfAdmission(), TickState()).verdicts] == [True, False]


def test_edf_with_admission_refuses_who_would_be_late_or_make_others_late() -> None:
    jobs = [
        job("a", 80.0, LINEAR, deadline_s=11.0),
        job("b", 80.0, LINEAR, deadline_s=19.0),
        job("c", 16.0, LINEAR, deadline_s=10.0),
        job("d", 8.0, LINEAR, deadline_s=21.0),
    ]
    view = view_of(Cluster.parse("1x8"), [JobState(spec) for spec in jobs], overheads=Overheads.none())
    verdicts = tick(view, EdfAdmission(), TickState()).verdicts
    assert [v.admitted for v in verdicts] == [True, False, False, True]
    assert [v.why for v in verdicts][1:3] == [
        "in EDF order it would be late",
        "in EDF order it would make another job late",
    ]


def test_edf_with_admission_counts_on_the_type_that_a_job_will_be_given() -> None:
    # "b" comes while "a" holds all of A: it starts on B, half as fast, and stays there.
    fast, slow = ScalingCurve.linear(2.0, 4), ScalingCurve.linear(1.0, 4)
    both = ((typed("A"), fast), (typed("B"), slow))
    jobs = [
        replace(job("a", 800.0, fast, deadline_s=110.0), curves=both),
        replace(job("b", 1600.0, fast, submit_s=10.0, deadline_s=320.0), curves=both),
        replace(job("c", 1200.0, fast, submit_s=10.0, deadline_s=320.0), curves=both),
    ]
    config = SimConfig(cluster=Cluster.parse("1x4:A,1x4:B"), overheads=Overheads.none())
    outcomes = Simulation(config, jobs, EdfAdmission()).run().result().outcomes
    assert [o.admitted for o in outcomes] == [True, False, True]
    assert [o.finished_s for o in outcomes] == [100.0, None, 310.0]


def test_a_deadline_that_is_just_met_is_not_given_up_for_a_rounded_sum() -> None:
    # "tight" ends at its deadline; worked out again on the way, by some delays a last digit after it.
    thirds = ScalingCurve(((1, 1 / 3), (2, 2 / 3)))
    for delay in (0.1, 0.3, 0.7, 1.1, 2.3, 4.7):
        tight = job("tight", 10.1, thirds, submit_s=0.1, deadline_s=0.1 + 10.1 / (2 / 3))
        greedy = job("greedy", 2.0, thirds, submit_s=0.1 + delay, deadline_s=0.2 + delay + 3.0)
        config = SimConfig(cluster=Cluster.parse("1x2"), overheads=Overheads.none())
        outcomes = Simulation(config, [tight, greedy], EdfAdmission()).run().result().outcomes
        assert [o.admitted for o in outcomes] == [True, False]


@settings(max_examples=60)
@given(job_lists(hard_only=True), clusters)
def test_edf_with_admission_keeps_what_it_admits(jobs: list[JobSpec], cluster: Cluster) -> None:
    assert_kept(jobs, cluster)


@settings(max_examples=100)
@given(bounded_jobs(most=14), st.sampled_from(["2x2:A,1x8:B", "1x4:A,1x4:B", "1x2:A,1x4:B"]))
def test_edf_with_admission_keeps_what_it_admits_on_two_types(jobs: list[JobSpec], text: str) -> None:
    hard = [replace(spec, goal=Goal.HARD) for spec in jobs if spec.deadline_s is not None]
    assume(hard)
    assert_kept(hard, Cluster.parse(text))


def assert_kept(jobs: list[JobSpec], cluster: Cluster) -> None:
    result = Simulation(SimConfig(cluster=cluster, overheads=Overheads.none()), jobs, EdfAdmission()).run().result()
    for outcome in result.outcomes:
        assert not outcome.admitted or outcome.finished_s is not None
        assert (outcome.finished_s or 0.0) <= (outcome.spec.deadline_s or 0.0) + 1e-6


def test_edf_with_elastic_shares_meets_both_deadlines_of_which_edf_misses_one() -> None:
    # As in figure 3 of ElasticFlow's paper: one worker for each, where EDF gives both to the first.
    curve = ScalingCurve(((1, 1 / 60), (2, 1.5 / 60)))
    jobs = [job(name, 3.0, curve, deadline_s=180.0 + 1e-3) for name in "ab"]
    assert first_shares(Edf(), jobs, "1x2") == {"a": 2}
    # Nobody has a second to spare: a first start costs no pause, and none is planned.
    assert first_shares(EdfElastic(), jobs, "1x2") == {"a": 1, "b": 1}


def test_edf_with_elastic_shares_turns_nobody_away_and_gives_the_late_what_helps() -> None:
    jobs = [job("lost", 1000.0, LINEAR, deadline_s=1.0, max_workers=4), job("soon", 100.0, LINEAR, deadline_s=30.0)]
    view = view_of(Cluster.parse("1x8"), [JobState(spec) for spec in jobs], overheads=Overheads.none())
    found = tick(view, EdfElastic(), TickState())
    assert [verdict.admitted for verdict in found.verdicts] == [True, True]
    assert {name: share.num_devices for name, share in found.plan.shares.items()} == {"lost": 4, "soon": 4}
    assert found.plan.shares[JobId("lost")].why == "it is late and takes what makes it faster"


def test_tiresias_prefers_least_attained_service_and_wakes_at_the_threshold() -> None:
    old = job("old", 10_000.0, LINEAR, requested_workers=8)
    young = job("young", 800.0, LINEAR, requested_workers=8, submit_s=100.0)
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=Overheads.none())
    result = Simulation(config, [old, young], Tiresias(thresholds_s=(1600.0,))).run().result()
    ends = {o.id: o.finished_s for o in result.outcomes}
    # old sinks after 1600 / 8 = 200 s; young then runs its 100 s; old goes on.
    assert abs((ends["young"] or 0.0) - 300.0) < 0.1  # type: ignore[index]
    assert abs((ends["old"] or 0.0) - 1350.0) < 0.1  # type: ignore[index]
    assert result.outcomes[0].num_suspensions == 1


def test_tiresias_promotes_a_starving_job_although_nothing_else_happens() -> None:
    # Both sink after 10 s; then "b" waits for "a", which came first, until it has waited for as long as it ran.
    jobs = [job(name, 100.0, LINEAR) for name in ("a", "b")]
    config = SimConfig(cluster=Cluster.parse("1x1"), overheads=Overheads.none())
    result = Simulation(config, jobs, Tiresias(thresholds_s=(10.0,), promote=3.0)).run().result()
    resumed = [entry.at_s for entry in result.log if entry.action.job == "b"]
    assert resumed[1:3] == pytest.approx([20.0, 40.0], abs=0.1)
