"""What starts, growth and ends cost in the simulator, where they cost something of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import ClusterView
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.plan import Share
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Decision
from melodeon.sim.engine import SimConfig, SimResult, Simulation
from melodeon.sim.metrics import summarize
from melodeon.sim.record import record
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 8)


def flat(seconds: float) -> Pause:
    return Pause(base_s=seconds, large_s=seconds, connect_s=0.0)


REAL = Overheads(default=flat(0.5), start=flat(4.0), first_start=True, grow_s=1.0, end_s=2.0)


@dataclass(frozen=True)
class Script:
    """Gives every job what is written down for the moment."""

    lines: Mapping[float, Mapping[str, int]]

    def decide(self, view: ClusterView, state: object) -> Decision:
        now = max(at for at in self.lines if at <= view.now_s)
        kind = view.cluster.types[0]
        shares = {
            JobId(name): Share(JobId(name), ((kind, count),), "written down")
            for name, count in self.lines[now].items()
            if count and JobId(name) in view.jobs
        }
        return Decision(shares, state, min((at for at in self.lines if at > view.now_s), default=None))


def run(jobs: list[JobSpec], script: Mapping[float, Mapping[str, int]], overheads: Overheads = REAL) -> SimResult:
    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=overheads)
    return Simulation(config, jobs, Script(script)).run().result()


def ends(result: SimResult) -> dict[str, float | None]:
    return {str(outcome.id): outcome.finished_s for outcome in result.outcomes}


def test_a_start_and_an_end_take_their_own_time() -> None:
    result = run([job("a", 100.0, LINEAR)], {0.0: {"a": 1}})
    assert ends(result) == {"a": 4.0 + 100.0 + 2.0}
    assert result.outcomes[0].pause_s == 4.0


def test_devices_are_held_until_the_end_is_over() -> None:
    jobs = [job("a", 10.0, LINEAR), job("b", 10.0, LINEAR)]
    config = SimConfig(cluster=Cluster.parse("1x1"), overheads=REAL)
    result = Simulation(config, jobs, Fifo()).run().result()
    assert ends(result) == {"a": 16.0, "b": 32.0}


def test_a_job_that_grows_trains_on_until_its_new_workers_are_ready() -> None:
    # 4 s of start, 6 s on one worker, 1 s more of that, half a second's pause, and the other 93 on two.
    assert ends(run([job("a", 100.0, LINEAR)], {0.0: {"a": 1}, 10.0: {"a": 2}})) == {"a": 11.5 + 93 / 2 + 2.0}


def test_what_is_trained_until_new_workers_are_ready_counts_for_the_efficiency() -> None:
    result = run([job("a", 100.0, LINEAR)], {0.0: {"a": 1}, 10.0: {"a": 2}})
    assert result.outcomes[0].effective_s == pytest.approx(100.0), "as much as one device alone would have trained"


def test_a_job_that_shrinks_does_so_at_once() -> None:
    assert ends(run([job("a", 100.0, LINEAR)], {0.0: {"a": 2}, 10.0: {"a": 1}})) == {"a": 10.5 + 88 + 2.0}


def test_a_job_that_is_resized_while_it_starts_starts_no_earlier() -> None:
    assert ends(run([job("a", 100.0, LINEAR)], {0.0: {"a": 1}, 1.0: {"a": 2}})) == {"a": 4.5 + 50 + 2.0}


def test_a_job_that_would_be_done_before_it_has_grown_is_done_then() -> None:
    result = run([job("a", 6.5, LINEAR)], {0.0: {"a": 1}, 10.0: {"a": 2}})
    assert ends(result)["a"] == pytest.approx(10.5 + 0.5 + 2.0)


def test_whoever_is_resized_while_it_ends_ends_all_the_same() -> None:
    jobs = [job("a", 6.0, LINEAR), job("b", 1.0, LINEAR)]
    assert ends(run(jobs, {0.0: {"a": 1}, 11.0: {"a": 2}, 11.5: {"b": 1}}))["a"] == 12.0


def test_devices_of_a_job_that_is_stopped_are_free_when_it_has_left() -> None:
    jobs = [job("a", 100.0, LINEAR), job("b", 10.0, LINEAR)]
    result = run(jobs, {0.0: {"a": 4}, 10.0: {"b": 4}, 21.0: {"a": 4}})
    # b waits 2 s for a to leave; a starts again, with what it had.
    assert ends(result)["b"] == 10.0 + 2.0 + 4.0 + 2.5 + 2.0
    assert ends(result)["a"] == pytest.approx(25.0 + (100 - 24) / 4 + 2.0)


def test_devices_of_a_job_that_shrinks_are_free_when_it_has_left_them() -> None:
    jobs = [job("a", 100.0, LINEAR), job("b", 10.0, LINEAR), job("c", 100.0, LINEAR)]
    script = {0.0: {"a": 2, "c": 2}, 10.0: {"a": 1, "b": 1, "c": 2}, 50.0: {"a": 1, "c": 2}}
    slow = replace(REAL, shrink_s=3.0)
    # b waits 3 s for a to leave; c, which is not concerned, does not.
    assert ends(run(jobs, script, slow)) == {"a": 10.5 + 88 + 2.0, "b": 10.0 + 3.0 + 4.0 + 10.0 + 2.0, "c": 56.0}


def test_devices_of_a_job_that_is_to_shrink_while_it_starts_are_free_after_that() -> None:
    jobs = [job("a", 100.0, LINEAR), job("b", 10.0, LINEAR)]
    script = {0.0: {"a": 4}, 1.0: {"a": 2, "b": 2}}
    assert ends(run(jobs, script, replace(REAL, shrink_s=3.0)))["b"] == 4.0 + 3.0 + 4.0 + 5.0 + 2.0


def test_whoever_grows_onto_devices_that_are_being_left_trains_on_until_they_are() -> None:
    jobs = [job("a", 100.0, LINEAR), job("b", 100.0, LINEAR)]
    script = {0.0: {"a": 2, "b": 2}, 10.0: {"a": 1, "b": 3}}
    slow = replace(REAL, shrink_s=3.0)
    # 12 by 10 s, 8 in the 4 s until it has grown, and half a second's pause.
    assert ends(run(jobs, script, slow))["b"] == pytest.approx(14.5 + 80 / 3 + 2.0)


def test_devices_of_a_job_that_moves_are_free_when_those_that_it_moves_to_were_and_it_is_there() -> None:
    jobs = [job("a", 400.0, LINEAR), job("b", 400.0, LINEAR), job("c", 20.0, LINEAR)]
    script = {0.0: {"a": 4, "b": 4}, 10.0: {"a": 2, "b": 2, "c": 4}}
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=replace(REAL, shrink_s=3.0))
    result = Simulation(config, jobs, Script(script)).run().result()
    # One of the two leaves 2 devices in 3 s; the other is ready there 1 s later, and leaves its own for c in 3 s.
    assert ends(result)["c"] == 10.0 + (3.0 + 1.0 + 3.0) + 4.0 + 5.0 + 2.0


def test_a_job_that_makes_room_pays_the_pause_of_its_model() -> None:
    costs = Overheads(default=flat(0.0), by_model=(("bert", flat(3.0)), ("gpt2", flat(5.0))))
    jobs = [job(name, 400.0, LINEAR, model=model) for name, model in zip("abcd", ("bert", "gpt2") * 2, strict=True)]
    # Two are left on two nodes, one each, when another wants a whole node.
    script = {0.0: dict.fromkeys("abcd", 2), 10.0: {"a": 2, "c": 2}, 20.0: {"a": 2, "c": 2, "b": 4}}
    config = SimConfig(cluster=Cluster.parse("2x4"), overheads=costs)
    result = Simulation(config, jobs, Script(script)).run(100.0).result()
    found = {outcome.id: outcome for outcome in result.outcomes}
    assert sorted((found[JobId(name)].num_migrations, found[JobId(name)].pause_s) for name in "ac") == [
        (0, 0.0),
        (1, 3.0),
    ]
    assert found[JobId("b")].pause_s == 5.0
    figures = summarize(result)
    assert (figures.num_migrations, figures.num_resizes, figures.num_suspensions, figures.pause_s) == (1, 0, 2, 8.0)


def test_policies_can_be_told_of_other_costs_than_the_real_ones() -> None:
    seen: list[Overheads] = []

    class Listening(Fifo):
        def decide(self, view: ClusterView, state: object) -> Decision:
            seen.append(view.overheads)
            return super().decide(view, state)

    config = SimConfig(cluster=Cluster.parse("1x4"), overheads=REAL, believed=Overheads.none())
    result = Simulation(config, [job("a", 100.0, LINEAR)], Listening()).run().result()
    assert ends(result) == {"a": 106.0}
    assert set(seen) == {Overheads.none()}


def test_without_costs_of_their_own_starts_cost_what_changes_cost() -> None:
    same = Overheads(default=flat(3.0), first_start=True)
    assert same.pause_s("", 2, held=False) == same.pause_s("", 2) == 3.0
    assert REAL.pause_s("", 2, held=False) == 4.0
    assert Overheads(start=flat(4.0)).pause_s("", 2, fresh=True, held=False) == 0.0


def test_a_record_tells_the_pause_of_a_start() -> None:
    result = run([job("a", 100.0, LINEAR)], {0.0: {"a": 1}, 10.0: {"a": 2}})
    made = record(result, trace="t", policy="script", cluster="1x4", seed=0)
    assert [change.pause_s for change in made.changes if change.what in ("start", "resize")] == [4.0, 0.5]


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(UsageError, match="0 s"):
        Overheads(end_s=-1.0)
