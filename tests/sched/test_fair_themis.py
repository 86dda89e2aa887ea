"""Themis' auctions and Gandiva's time slices."""

from itertools import product
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobSpec
from melodeon.core.overhead import Overheads, Pause
from melodeon.sched.auction import Bid, nash, partial
from melodeon.sched.gandiva import Gandiva
from melodeon.sched.policy import Policy
from melodeon.sched.registry import make_policy
from melodeon.sched.themis import Themis
from melodeon.sched.tick import TickState, tick
from melodeon.sim.engine import SimConfig, SimResult, Simulation
from tests.sched.draws import clusters, job, job_lists, view_of

LINEAR = ScalingCurve.linear(1.0, 8)


def run(policy: Policy, jobs: list[JobSpec], cluster: str = "1x8") -> SimResult:
    config = SimConfig(cluster=Cluster.parse(cluster), overheads=Overheads.none())
    return Simulation(config, jobs, policy).run().result()


def ends(result: SimResult) -> dict[str, float]:
    return {outcome.id: outcome.finished_s or 0.0 for outcome in result.outcomes}


@st.composite
def bids(draw: st.DrawFn) -> Bid:
    counts = tuple(1 << k for k in range(draw(st.integers(1, 4))))
    value = idle = draw(st.floats(0.05, 1.0))
    values = []
    for _ in counts:
        value *= 1 + draw(st.floats(0.0, 1.0))
        values.append(value)
    return Bid(idle, counts, tuple(values))


def product_of(bidders: list[Bid], levels: list[int]) -> float:
    return sum(log(bid.value(level)) for bid, level in zip(bidders, levels, strict=True))


@settings(max_examples=60)
@given(st.lists(bids(), min_size=1, max_size=4), st.integers(0, 12))
def test_the_auction_never_sells_twice_and_comes_near_the_best_product(bidders: list[Bid], devices: int) -> None:
    levels = nash(devices, bidders)
    kept = partial(devices, bidders)
    for found in (levels, kept):
        assert sum(bid.counts[level - 1] for bid, level in zip(bidders, found, strict=True) if level) <= devices
    assert all(paid <= won for paid, won in zip(kept, levels, strict=True))
    everything = product(*(range(len(bid.counts) + 1) for bid in bidders))
    feasible = [
        list(found)
        for found in everything
        if sum(bid.counts[level - 1] for bid, level in zip(bidders, found, strict=True) if level) <= devices
    ]
    nothing = product_of(bidders, [0] * len(bidders))
    best = max(product_of(bidders, found) for found in feasible) - nothing
    # Greedy by gain for each device: with steps this large it may miss, but never more than one job alone can have.
    single = max(product_of(bidders, f) for f in feasible if sum(map(bool, f)) <= 1) - nothing
    assert product_of(bidders, levels) - nothing + single >= best - 1e-9


def test_a_winner_that_takes_from_others_pays_and_one_alone_does_not() -> None:
    greedy = Bid(0.1, (1, 2, 4), (0.2, 0.4, 0.8))
    assert partial(4, [greedy]) == [3]
    assert sum(partial(4, [greedy, greedy])) < sum(nash(4, [greedy, greedy]))


def test_the_job_that_was_treated_worst_goes_first() -> None:
    running = job("long", 8000.0, LINEAR, requested_workers=8)
    short = job("short", 80.0, LINEAR, requested_workers=8, submit_s=10.0)
    longer = job("longer", 4000.0, LINEAR, requested_workers=8, submit_s=5.0)
    result = ends(run(Themis(lease_s=100.0), [running, short, longer]))
    # At the first lease's end the short job has waited many times its length, the longer one a fraction of it.
    assert result["short"] == 110.0
    assert result["short"] < result["longer"]


def test_a_lease_is_kept_until_it_ends() -> None:
    jobs = [job("a", 8000.0, LINEAR, requested_workers=8), job("b", 8.0, LINEAR, requested_workers=8, submit_s=1.0)]
    for lease_s in (50.0, 300.0):
        assert ends(run(Themis(lease_s=lease_s), jobs))["b"] == pytest.approx(lease_s + 1.0)


@pytest.mark.parametrize("name", ["themis", "gandiva"])
@settings(max_examples=40)
@given(jobs=job_lists(most=10), cluster=clusters)
def test_whoever_fits_runs(name: str, jobs: list[JobSpec], cluster: Cluster) -> None:
    found = tick(view_of(cluster, [JobState(spec) for spec in jobs]), make_policy(name), TickState()).plan.shares
    free = cluster.num_devices - sum(share.num_devices for share in found.values())
    waiting = [spec for spec in jobs if spec.id not in found]
    assert all(min(spec.requested_workers, cluster.num_devices) > free for spec in waiting)


def test_themis_asks_for_fewer_devices_if_it_may() -> None:
    jobs = [job(name, 4000.0, LINEAR, requested_workers=8) for name in "ab"]
    rigid = tick(view_of(Cluster.parse("1x8"), [JobState(s) for s in jobs]), Themis(), TickState()).plan.shares
    assert len(rigid) == 1
    result = run(Themis(elastic=True, fairness=0.0), jobs)
    assert all(o.started_s == 0.0 for o in result.outcomes), "both run at once, on a part of the devices each"


def test_gandiva_gives_everybody_a_slice_in_turn() -> None:
    jobs = [job(name, 480.0, LINEAR, requested_workers=8) for name in "abc"]
    result = run(Gandiva(slice_s=20.0), jobs)
    assert [o.started_s for o in result.outcomes] == [0.0, 20.0, 40.0]
    # 60 s each in slices of 20 s.
    assert sorted(ends(result).values()) == [140.0, 160.0, 180.0]


def test_a_slice_is_longer_than_the_pause_that_it_costs() -> None:
    jobs = [job(name, 480.0, LINEAR, requested_workers=8) for name in "ab"]
    slow = Overheads(default=Pause(base_s=100.0, connect_s=0.0), first_start=True)
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=slow)
    result = Simulation(config, jobs, Gandiva(slice_s=60.0)).run(until_s=10_000.0).result()
    assert all(outcome.finished_s is not None for outcome in result.outcomes), "each slice was spent on starting"


def test_a_newcomer_gets_the_next_slice() -> None:
    jobs = [job(name, 4800.0, LINEAR, requested_workers=8) for name in "abc"]
    late = job("late", 8.0, LINEAR, requested_workers=8, submit_s=30.0)
    assert ends(run(Gandiva(slice_s=20.0), [*jobs, late]))["late"] == 41.0


def test_gandiva_grows_into_idle_devices_and_shrinks_when_somebody_comes() -> None:
    lone = job("a", 800.0, LINEAR, requested_workers=2)
    assert ends(run(Gandiva(), [lone])) == {"a": 400.0}
    assert ends(run(Gandiva(grow=True), [lone])) == {"a": 100.0}
    second = job("b", 400.0, LINEAR, requested_workers=4, submit_s=50.0)
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=Overheads.none())
    view = Simulation(config, [lone, second], Gandiva(grow=True)).run(until_s=51.0).view()
    assert {name: state.num_devices for name, state in view.jobs.items()} == {"a": 4, "b": 4}


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="fairness=1"):
        Themis(fairness=1.0)
    with pytest.raises(UsageError, match="slice_s=0"):
        Gandiva(slice_s=0.0)
