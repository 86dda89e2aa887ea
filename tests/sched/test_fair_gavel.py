"""Gavel: the max-min law on small cases, rounds that follow the shares, and the heterogeneous extension."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.gavel import Gavel
from melodeon.sched.gavel_hetero import GavelHetero
from melodeon.sched.maxmin import Valued, max_min
from melodeon.sched.policy import Policy
from melodeon.sched.registry import make_policy
from melodeon.sched.tick import TickState, tick
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import view_of

V100, K80 = DeviceType("V100"), DeviceType("K80")


def job(name: str, fast: float, slow: float, iterations: float = 1000.0, workers: int = 1, **values: float) -> JobSpec:
    return JobSpec(
        id=JobId(name),
        iterations=iterations,
        curves=((V100, ScalingCurve.linear(fast, 8)), (K80, ScalingCurve.linear(slow, 8))),
        goal=Goal.BEST_EFFORT,
        requested_workers=workers,
        **values,  # type: ignore[arg-type]
    )


def run(policy: Policy, jobs: list[JobSpec], cluster: str, overheads: Overheads | None = None) -> dict[str, float]:
    config = SimConfig(cluster=Cluster.parse(cluster), overheads=overheads or Overheads.none())
    return {o.id: o.finished_s or 0.0 for o in Simulation(config, jobs, policy).run().result().outcomes}


def test_who_gains_most_from_the_fast_type_gets_most_of_it() -> None:
    # One device of each type and four jobs: two are 4 times as fast on V100, two only 1.25 times.
    keen = [Valued(((V100, 1),), 1.6), Valued(((K80, 1),), 0.4)]
    mild = [Valued(((V100, 1),), 10 / 9), Valued(((K80, 1),), 8 / 9)]
    offers = [keen, keen, mild, mild]
    found = max_min(offers, {V100: 1, K80: 1})
    worth = [sum(o.value * x for o, x in zip(own, row, strict=True)) for own, row in zip(offers, found, strict=True)]
    # With v of the V100's time to the keen ones 0.8 v = (8/9 + 10/9 (1 - v)) / 2, so v = 0.738; even shares give 0.5.
    assert worth == pytest.approx([0.5902] * 4, abs=1e-3)
    assert found[0][0] + found[1][0] == pytest.approx(0.7377, abs=1e-3)


def test_where_everybody_fits_no_program_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melodeon.sched.maxmin._solver", lambda: pytest.fail("a program was solved"))
    keen, mild = [Valued(((V100, 2),), 1.6), Valued(((K80, 2),), 0.4)], [Valued(((K80, 1),), 0.9)]
    assert max_min([keen, mild, []], {V100: 2, K80: 1}) == [[1.0, 0.0], [1.0], []]


values = st.floats(0.1, 4.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(values, values, st.integers(1, 2)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_the_worst_off_job_cannot_be_better_off_and_nothing_is_given_twice(
    jobs: list[tuple[float, float, int]], fast: int, slow: int
) -> None:
    capacity = {V100: fast, K80: slow}
    offers = [
        [Valued(((kind, n),), value) for kind, value in ((V100, a), (K80, b)) if n <= capacity[kind]]
        for a, b, n in jobs
    ]
    found = max_min(offers, capacity)
    worth = [
        sum(offer.value * part for offer, part in zip(own, row, strict=True))
        for own, row in zip(offers, found, strict=True)
    ]
    for kind, count in capacity.items():
        used = sum(
            dict(offer.counts).get(kind, 0) * part
            for own, row in zip(offers, found, strict=True)
            for offer, part in zip(own, row, strict=True)
        )
        assert used <= count + 1e-6
    assert all(sum(row) <= 1 + 1e-6 for row in found)
    live = [w for w, own in zip(worth, offers, strict=True) if own]
    if not live:
        return
    # Duality: with any prices for devices and any weights of the jobs, nobody can do better than this bound.
    for price in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
        prices = {V100: price, K80: 1.0}
        best = 0.0
        for own in (own for own in offers if own):
            profit = max(o.value - sum(prices[kind] * n for kind, n in o.counts) for o in own)
            best += max(0.0, profit)
        bound = (best + sum(prices[kind] * n for kind, n in capacity.items())) / len(live)
        assert min(live) <= bound + 1e-6
    assert min(live) >= _half_of_each(offers, capacity, len(live)) - 1e-6


def _half_of_each(offers: list[list[Valued]], capacity: dict[DeviceType, int], jobs: int) -> float:
    """The worst value when every job gets as much time on every type, which is always possible."""
    parts = []
    for own in (own for own in offers if own):
        time = {o.counts[0][0]: min(1.0, capacity[o.counts[0][0]] / (jobs * o.counts[0][1])) for o in own}
        scale = min(1.0, 1 / sum(time.values()))
        parts.append(sum(o.value * time[o.counts[0][0]] * scale for o in own))
    return min(parts)


def test_rounds_follow_the_shares_so_equal_jobs_end_about_together() -> None:
    ends = run(Gavel(round_s=10.0), [job(name, 2.0, 1.0, 600.0) for name in "abc"], "1x1:V100,1x1:K80")
    assert max(ends.values()) - min(ends.values()) <= 30.0
    assert max(ends.values()) == pytest.approx(1800 / 3, abs=30.0), "both devices work all the time"


def test_a_job_that_wants_many_devices_is_not_starved_by_small_ones() -> None:
    small = [job(f"s{i}", 1.0, 1.0, 4000.0, submit_s=200.0 * i) for i in range(8)]
    ends = run(Gavel(round_s=60.0), [job("big", 1.0, 1.0, 1600.0, workers=4), *small], "4x1:V100")
    assert ends["big"] < 4000.0


@pytest.mark.parametrize("light", [1e-9, 1e-300])
def test_weights_that_are_many_orders_of_size_apart_are_solved(light: float) -> None:
    # What light jobs are worth would hide the heavy one from a solver whose tolerances are absolute.
    offers = [[Valued(((V100, n),), n / weight)] for n, weight in ((1, light), (3, light), (1, 2.0))]
    (one,), (three,), (heavy,) = max_min(offers, {V100: 4})
    assert heavy == pytest.approx(1.0, abs=1e-5), "it has all the time that it can use"
    assert one + 3 * three == pytest.approx(3.0, abs=1e-5), "and the others have the rest"


def test_weights_divide_the_time() -> None:
    jobs = [job("heavy", 1.0, 1.0, 900.0, weight=3.0), job("light", 1.0, 1.0, 900.0)]
    ends = run(Gavel(round_s=10.0), jobs, "1x1:V100")
    assert ends["heavy"] == pytest.approx(1200.0, abs=40.0), "three quarters of the time"
    assert ends["light"] == 1800.0


@pytest.mark.parametrize("name", ["gavel", "gavel-hetero"])
@settings(max_examples=25, deadline=None)
@given(jobs=st.lists(st.tuples(values, values, st.sampled_from([1, 2, 4])), min_size=1, max_size=7))
def test_whoever_fits_runs(name: str, jobs: list[tuple[float, float, int]]) -> None:
    specs = [job(f"j{i}", a, b, workers=n) for i, (a, b, n) in enumerate(jobs)]
    cluster = Cluster.parse("2x2:V100,1x4:K80")
    found = tick(view_of(cluster, [JobState(spec) for spec in specs]), make_policy(name), TickState()).plan.shares
    free = dict(cluster.capacity)
    for share in found.values():
        for kind, count in share.counts:
            free[kind] -= count
    assert min(free.values()) >= 0
    waiting = [spec for spec in specs if spec.id not in found]
    assert all(spec.requested_workers > max(free.values()) for spec in waiting)


def test_idle_devices_of_another_type_speed_a_lone_job_up_and_are_given_back() -> None:
    alone = [job("a", 2.0, 1.0, 6000.0, workers=2)]
    assert run(Gavel(), alone, "1x2:V100,1x4:K80") == {"a": 1500.0}
    assert run(GavelHetero(), alone, "1x2:V100,1x4:K80")["a"] < 1000.0
    both = [alone[0], job("b", 2.0, 1.0, 6000.0, workers=4, submit_s=100.0)]
    config = SimConfig(cluster=Cluster.parse("1x2:V100,1x4:K80"), overheads=Overheads.none())
    mixed = Simulation(config, both, GavelHetero()).run(until_s=101.0)
    shares = {name: state.counts for name, state in mixed.view().jobs.items()}
    assert shares == {"a": ((V100, 2),), "b": ((K80, 4),)}


def test_changes_that_cost_more_than_a_round_gains_are_left_alone() -> None:
    dear = Overheads(first_start=False)
    jobs = [job("a", 2.0, 1.0, 6000.0, workers=2)]
    assert run(GavelHetero(round_s=8.0), jobs, "1x2:V100,1x4:K80", dear)["a"] <= 1500.0


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="round_s=0"):
        Gavel(round_s=0)
    with pytest.raises(UsageError, match="min_gain=-1"):
        GavelHetero(min_gain=-1)
