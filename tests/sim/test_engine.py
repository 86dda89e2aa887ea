from collections.abc import Callable
from dataclasses import replace

import pytest

from melodeon.core.cluster import DEFAULT_TYPE, Cluster, DeviceType, NodeId
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.plan import Block, Start
from melodeon.sched.edf import Edf
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sched.fifo import Fifo
from melodeon.sched.tick import Rules
from melodeon.sched.tiresias import Tiresias
from melodeon.sim.engine import SimConfig, SimResult, Simulation
from melodeon.sim.incidents import Failures, Incident, random_failures, straggler
from melodeon.sim.live import LiveJob
from melodeon.sim.metrics import quantile, summarize
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 8)
FREE = Overheads.none()


def ends(result: SimResult) -> dict[str, float | None]:
    return {o.id: o.finished_s for o in result.outcomes}


def config(cluster: str = "1x2", **values: object) -> SimConfig:
    return SimConfig(**({"cluster": Cluster.parse(cluster), "overheads": FREE} | values))  # type: ignore[arg-type]


# Figure 3: two workers, a job of 3 iterations due at 3 and one due at 3.5; 1 iteration a unit alone, 1.5 on two.
def figure_3() -> list[JobSpec]:
    curve = ScalingCurve(((1, 1 / 60), (2, 1.5 / 60)))
    return [job("a", 3.0, curve, deadline_s=180.0 + 1e-3), job("b", 3.0, curve, deadline_s=210.0)]


def test_figure_3_edf_runs_one_after_the_other_and_misses() -> None:
    result = Simulation(config(), figure_3(), Edf()).run().result()
    assert ends(result) == {"a": pytest.approx(120.0), "b": pytest.approx(240.0)}
    assert summarize(result).num_missed == 1


def test_figure_3_elasticflow_runs_both_at_once_and_meets_both() -> None:
    result = Simulation(config(), figure_3(), ElasticFlow()).run().result()
    assert summarize(result).deadline_ratio == 1.0


def test_ends_are_gathered_for_a_slot_and_submissions_answered_at_once() -> None:
    jobs = [job("a", 90.0, LINEAR), job("b", 30.0, LINEAR, submit_s=85.0), job("c", 5.0, LINEAR, submit_s=400.0)]
    result = Simulation(config("1x1", slot_s=60.0), jobs, Fifo()).run().result()
    # Rounds at 0 and 85; a ends at 90, which is answered at 145, so that b runs then; c finds the cluster empty.
    assert ends(result) == {"a": 90.0, "b": 175.0, "c": 405.0}
    assert [logged.at_s for logged in result.log] == [0.0, 145.0, 400.0]


@pytest.mark.parametrize("slot_s", [0.0, 60.0])
def test_years_in_which_nothing_happens_take_no_rounds(slot_s: float) -> None:
    jobs = [job("a", 1e9, LINEAR, deadline_s=3e9), job("b", 1e9, LINEAR, submit_s=5e8, deadline_s=3e9)]
    for policy, rounds in ((Fifo(), 4), (ElasticFlow(), 4)):
        result = Simulation(config("1x2", slot_s=slot_s), jobs, policy).run().result()
        assert all(outcome.finished_s is not None for outcome in result.outcomes)
        assert len(result.decision_s) <= rounds, "two submissions, an end, and perhaps a promise that falls due"


def test_a_policy_that_asked_to_be_woken_is_woken_in_the_middle_of_a_slot() -> None:
    old, young = job("old", 9e3, LINEAR), job("young", 9e3, LINEAR, submit_s=1.0)
    ticks = Tiresias(thresholds_s=(10.0,))
    result = Simulation(config("1x1", slot_s=600.0), [old, young], ticks).run(until_s=50.0).result()
    assert [logged.at_s for logged in result.log][:3] == pytest.approx([0.0, 10.0, 10.0], abs=0.01)


def test_a_trace_may_start_at_any_time_and_in_any_order() -> None:
    jobs = [job("b", 10.0, LINEAR, submit_s=1_000_500.0), job("a", 10.0, LINEAR, submit_s=1_000_000.0)]
    result = Simulation(config("1x1"), jobs, Fifo()).run().result()
    assert [o.id for o in result.outcomes] == ["a", "b"]
    assert summarize(result).makespan_s == 510.0
    assert summarize(result).utilisation == pytest.approx(20 / 510)


def test_a_change_of_workers_costs_its_pause_and_the_first_start_does_not() -> None:
    paid = Overheads(default=Pause(base_s=5.0, connect_s=0.0))
    jobs = [job("a", 100.0, LINEAR, deadline_s=1e6), job("b", 10.0, LINEAR, submit_s=4.0, deadline_s=1e5)]
    result = Simulation(config("1x4", overheads=paid), jobs, Edf()).run().result()
    a = result.outcomes[0]
    # 4 s on 4 devices, suspended for b's 10 / 4 s, then 5 s of pause and the rest.
    assert a.num_suspensions == 1
    assert a.pause_s == 5.0
    assert a.finished_s == pytest.approx(4 + 2.5 + 5 + (100 - 16) / 4)


def test_a_job_on_a_failed_node_goes_on_elsewhere_with_all_its_iterations() -> None:
    cluster = Cluster.parse("2x1")
    failure = (Incident(40.0, cluster.nodes[0].id, up=False),)
    result = Simulation(config("2x1", incidents=failure), [job("a", 100.0, LINEAR)], Fifo()).run().result()
    assert ends(result) == {"a": 100.0}
    assert result.outcomes[0].num_suspensions == 1


def test_a_straggler_slows_its_jobs_until_it_is_well_or_left() -> None:
    cluster = Cluster.parse("2x1")
    slow = straggler(cluster.nodes[0].id, from_s=20.0, until_s=60.0, speed=0.5)
    jobs = [job("a", 100.0, LINEAR)]
    assert ends(Simulation(config("2x1", incidents=slow), jobs, Fifo()).run().result()) == {"a": 120.0}
    leave = config("2x1", incidents=slow, rules=Rules(slowest=0.8))
    assert ends(Simulation(leave, jobs, Fifo()).run().result()) == {"a": 100.0}


def test_a_straggler_does_not_bring_a_dead_node_back() -> None:
    node = Cluster.parse("2x1").nodes[0].id
    dead = (Incident(10.0, node, up=False), *straggler(node, from_s=20.0, until_s=30.0, speed=0.5))
    result = Simulation(config("2x1", incidents=dead), [job("a", 100.0, LINEAR)], Fifo()).run(50.0)
    assert [there.up for there in result.cluster.nodes] == [False, True]
    # Nor does a repair make a slow node well.
    slow = (*straggler(node, from_s=5.0, until_s=90.0, speed=0.5), Incident(10.0, node, up=False), Incident(20.0, node))
    found = Simulation(config("2x1", incidents=slow), [job("a", 100.0, LINEAR)], Fifo()).run(50.0).cluster.node(node)
    assert (found.up, found.speed) == (True, 0.5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda node: straggler(node, from_s=60.0, until_s=20.0, speed=0.5), "the end comes after the beginning"),
        (lambda node: straggler(node, from_s=20.0, until_s=60.0, speed=0.0), "must be above 0"),
        (lambda node: Incident(float("nan"), node, up=False), "has no time"),
    ],
)
def test_an_incident_that_cannot_be_is_refused(make: Callable[[NodeId], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(Cluster.parse("1x1").nodes[0].id)


def test_failures_go_on_for_as_long_as_the_work_lasts() -> None:
    cluster = Cluster.parse("2x1")
    drawn = Failures(cluster, mean_up_s=50, mean_repair_s=5, stretch_s=500, seed=1)
    trunk = Simulation(config("2x1", failures=drawn), [job("a", 20_000.0, LINEAR)], Fifo()).run(300.0)
    fork, result = trunk.fork().run().result(), trunk.run().result()
    assert result.end_s > 20_000
    assert result.outcomes[0].num_suspensions > 100
    assert fork.config.incidents == result.config.incidents == tuple(sorted(result.config.incidents))
    last = max(incident.at_s for incident in result.config.incidents if not incident.up)
    assert last > result.end_s - 1000
    # What is drawn later changes nothing of what was drawn before.
    known = random_failures(cluster, mean_up_s=50, mean_repair_s=5, until_s=500, seed=1)
    assert [i for i in known if i.at_s < 500] == [i for i in result.config.incidents if i.at_s < 500]


def test_failures_end_where_nothing_can_be_trained_any_more() -> None:
    drawn = Failures(Cluster.parse("2x1"), mean_up_s=50, mean_repair_s=5, stretch_s=500, seed=1)
    large = job("large", 10.0, LINEAR, min_workers=4)
    simulation = Simulation(config("2x1", failures=drawn), [large], Fifo()).run()
    assert simulation.result().outcomes[0].finished_s is None
    assert all(node.up for node in simulation.cluster.nodes)


def test_random_failures_are_the_same_for_the_same_seed() -> None:
    cluster = Cluster.parse("3x1")
    drawn = [random_failures(cluster, mean_up_s=50, mean_repair_s=5, until_s=500, seed=s) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(drawn[0]) == sorted(drawn[0])


def test_a_fork_goes_its_own_way_and_leaves_the_original_alone() -> None:
    jobs = [job("a", 100.0, LINEAR, deadline_s=300.0, requested_workers=1)]
    jobs += [job("b", 100.0, LINEAR, submit_s=10.0, deadline_s=290.0, requested_workers=1)]
    straight = Simulation(config("1x2"), jobs, Fifo()).run().result()
    trunk = Simulation(config("1x2"), jobs, Fifo()).run(until_s=50.0)
    branch = trunk.fork(policy=Edf())
    branch.run()
    trunk.run()
    assert ends(trunk.result()) == ends(straight)
    assert ends(branch.result()) != ends(straight)
    assert ends(trunk.fork().run().result()) == ends(straight)


def test_a_fork_answers_what_if_with_more_jobs_and_more_failures() -> None:
    cluster = Cluster.parse("2x1")
    jobs = [job(name, 100.0, LINEAR, deadline_s=130.0) for name in "ab"]
    trunk = Simulation(config("2x1"), jobs, ElasticFlow()).run(until_s=20.0)
    late = job("c", 100.0, LINEAR, submit_s=30.0, deadline_s=120.0)
    busy = {o.id: o.admitted for o in trunk.fork(jobs=[late]).run().result().outcomes}
    assert busy == {"a": True, "b": True, "c": False}
    broken = trunk.fork(incidents=[Incident(50.0, cluster.nodes[0].id, up=False)]).run().result()
    assert summarize(broken).num_missed == 1
    assert summarize(trunk.run().result()).num_missed == 0
    with pytest.raises(UsageError, match="which is past"):
        trunk.fork(jobs=[job("d", 1.0, LINEAR)])
    with pytest.raises(UsageError, match="names"):
        trunk.fork(jobs=[job("a", 1.0, LINEAR, submit_s=1e6)])


def test_a_fork_of_every_moment_ends_like_the_original() -> None:
    jobs = [job(f"j{i}", 60.0 + 7 * i, LINEAR, submit_s=9.0 * i, deadline_s=200.0 + 30 * i) for i in range(8)]
    paid = config("1x4", overheads=Overheads(), slot_s=20.0)
    straight = ends(Simulation(paid, jobs, ElasticFlow()).run().result())
    trunk = Simulation(paid, jobs, ElasticFlow())
    for moment in range(0, 200, 13):
        trunk.run(until_s=float(moment))
        assert ends(trunk.fork().run().result()) == straight


def test_each_type_of_a_mixed_cluster_has_its_own_speed() -> None:
    fast, slow = DeviceType("A100"), DeviceType("T4")
    curves = ((fast, LINEAR), (slow, ScalingCurve.linear(0.25, 8)))
    jobs = [replace(job(name, 100.0, LINEAR, deadline_s=500.0), curves=curves) for name in "ab"]
    mixed = config("1x1:A100,1x1:T4")
    assert ends(Simulation(mixed, jobs, Fifo()).run().result()) == {"a": 100.0, "b": 400.0}
    result = Simulation(mixed, jobs, ElasticFlow()).run().result()
    assert summarize(result).num_missed == 0
    failure = (Incident(10.0, mixed.cluster.nodes[0].id, up=False),)
    lost = Simulation(replace(mixed, incidents=failure), jobs, Fifo()).run().result()
    # a waits for the T4 with 10 of its 100 iterations done.
    assert ends(lost) == {"a": 400.0 + 90.0 / 0.25, "b": 400.0}


def test_elasticflow_gives_a_job_on_a_straggler_more_so_that_it_is_in_time() -> None:
    flat = ScalingCurve(((1, 1.0), (2, 1.5), (4, 2.0)))
    jobs = [job("a", 100.0, flat, deadline_s=98.0), *(job(name, 900.0, LINEAR) for name in "bc")]
    assert ends(Simulation(config("2x4"), jobs, ElasticFlow()).run().result())["a"] == pytest.approx(200 / 3)
    slow = [straggler(node.id, from_s=10.0, until_s=1e6, speed=0.5) for node in Cluster.parse("2x4").nodes]
    both = tuple(incident for one in slow for incident in one)
    result = Simulation(config("2x4", incidents=both), jobs, ElasticFlow()).run().result()
    # 15 of the 100 are done after 10 s; at half speed two devices would be done at 123 s, four at 95 s.
    assert result.outcomes[0].num_resizes == 1
    assert summarize(result).num_missed == 0


def test_jobs_that_a_straggler_makes_late_come_to_their_end() -> None:
    slow = straggler(Cluster.parse("2x4").nodes[0].id, from_s=10.0, until_s=1e6, speed=0.5)
    crowd = [job(f"j{i}", 300.0, LINEAR, deadline_s=310.0, max_workers=4) for i in range(7)]
    found = summarize(Simulation(config("2x4", incidents=slow), crowd, ElasticFlow()).run().result())
    assert (found.num_missed > 0, found.num_unfinished) == (True, 0)


def test_what_is_not_finished_is_told_as_such() -> None:
    result = Simulation(config("1x1"), [job("a", 100.0, LINEAR)], Fifo()).run(until_s=30.0).result()
    assert result.outcomes[0].finished_s is None
    assert result.outcomes[0].service_s == 30.0
    assert summarize(result).num_unfinished == 1


def test_every_action_is_on_record_with_its_reason() -> None:
    result = Simulation(config("1x1"), [job("a", 10.0, LINEAR)], Fifo()).run().result()
    (logged,) = result.log
    assert isinstance(logged.action, Start)
    assert logged.action.job == JobId("a")
    assert "queue" in logged.action.why


def test_efficiency_counts_what_one_device_would_have_done() -> None:
    curve = ScalingCurve(((1, 1.0), (2, 1.5)))
    result = Simulation(config("1x2"), [job("a", 150.0, curve, requested_workers=2)], Fifo()).run().result()
    summary = summarize(result)
    assert summary.utilisation == pytest.approx(1.0)
    assert summary.cluster_efficiency == pytest.approx(0.75)
    assert summary.fairness_mean == pytest.approx(1.0)


def test_quantiles_are_values_that_occur() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([], 0.5) is None


def test_an_empty_trace_and_a_name_used_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="the trace is empty"):
        Simulation(config(), [], Fifo())
    with pytest.raises(UsageError, match="2 jobs share 1 names"):
        Simulation(config(), [job("a", 1.0, LINEAR)] * 2, Fifo())


def test_submissions_are_gathered_where_that_is_wanted() -> None:
    """As ElasticFlow's simulator does: what comes within a slot of the last round waits for its end."""
    jobs = [
        job("a", 100.0, LINEAR, deadline_s=10_000.0, requested_workers=1),
        job("b", 100.0, LINEAR, submit_s=10.0, deadline_s=10_000.0, requested_workers=1),
    ]
    started = {}
    for gather in (False, True):
        config = SimConfig(
            cluster=Cluster.parse("1x2"), slot_s=60.0, gather_submissions=gather, overheads=Overheads.none()
        )
        result = Simulation(config, jobs, Fifo()).run().result()
        started[gather] = {outcome.id: outcome.started_s for outcome in result.outcomes}
    assert started == {False: {"a": 0.0, "b": 10.0}, True: {"a": 0.0, "b": 60.0}}


def test_a_job_that_waits_is_told_of_as_the_same_value_until_something_changes() -> None:
    live = LiveJob(job("a", 100.0, ScalingCurve.linear(1.0, 1)), 0.0)
    unjudged = live.state(1.0)
    assert live.state(2.0) is unjudged
    live.admitted_s = 2.0
    assert live.state(2.0).admitted_s == 2.0
    live.hold(3.0, ((DEFAULT_TYPE, 1),), (Block(DEFAULT_TYPE, 0, 1),), 1.0, 0.0)
    assert live.state(13.0).done == 10.0
    assert live.state(23.0).done == 20.0
    live.hold(33.0, (), (), 0.0, 0.0)
    assert live.state(40.0) is live.state(50.0)
    assert live.state(50.0).done == 30.0
