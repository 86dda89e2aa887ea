"""Optimus, Pollux and goodput."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.goodput import Goodput
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.optimus import Optimus
from melodeon.sched.pollux import Pollux
from melodeon.sched.search import Choice, improve, raised
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import GPU, clusters, curves, job, job_lists, overheads, view_of

LINEAR = ScalingCurve.linear(1.0, 8)
FLAT = ScalingCurve(((1, 1.0), (2, 1.2), (4, 1.3), (8, 1.35)))


def waiting(*jobs: JobSpec) -> list[JobState]:
    return [JobState(spec, 0.0) for spec in jobs]


def counts(policy: Optimus | Pollux, jobs: list[JobState], cluster: str = "1x8", now_s: float = 0.0) -> dict[str, int]:
    view = view_of(Cluster.parse(cluster), jobs, now_s, overheads=Overheads.none())
    return {name: share.num_devices for name, share in policy.decide(view, None).shares.items()}


def test_optimus_serves_everybody_first_and_then_the_largest_gain() -> None:
    jobs = waiting(job("flat", 100.0, FLAT), job("steep", 100.0, LINEAR), job("tiny", 1.0, LINEAR))
    # One each; then 50 s (steep), 17 s (flat) and twice 12 s (steep) are saved; one is left, and only `tiny` fits it.
    assert counts(Optimus(), jobs) == {"tiny": 2, "flat": 2, "steep": 4}
    assert counts(Optimus(), jobs, "1x7") == {"tiny": 1, "flat": 2, "steep": 4}
    # Fewer devices than jobs: the least work goes first.
    assert counts(Optimus(), jobs, "1x1") == {"tiny": 1}


def test_optimus_changes_nothing_between_two_divisions() -> None:
    early = job("early", 4000.0, LINEAR, max_workers=2)
    late = job("late", 100.0, LINEAR, submit_s=100.0)
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=Overheads.none())
    result = Simulation(config, [early, late], Optimus(interval_s=600.0)).run().result()
    assert [o.started_s for o in result.outcomes] == [0.0, 600.0]
    at_once = Simulation(config, [early, late], Optimus(interval_s=0.0)).run().result()
    assert [o.started_s for o in at_once.outcomes] == [0.0, 100.0]


@given(curves, st.integers(1, 64), st.floats(0.0, 1e4))
def test_goodput_is_the_curve_at_its_own_batch_size_and_never_above_the_throughput(
    curve: ScalingCurve, workers: int, noise: float
) -> None:
    model = Goodput(batch_size=64, noise_scale=noise, min_batch_size=16, max_batch_size=1024)
    assert model.rate(curve, workers, 64) == pytest.approx(curve.rate(workers))
    chosen, goodput = model.best(curve, workers)
    assert 16 <= chosen <= 1024
    assert goodput >= curve.rate(workers)
    for batch in (size for size in model.batch_sizes if size >= 64):
        efficiency = (noise + 64) / (noise + batch)
        # A larger batch makes no step shorter.
        assert model.rate(curve, workers, batch) <= batch / 64 * efficiency * curve.rate(workers) * (1 + 1e-9)


def test_noisy_gradients_and_poor_scaling_ask_for_large_batches() -> None:
    def best(noise: float, curve: ScalingCurve) -> int:
        return Goodput(batch_size=64, noise_scale=noise, min_batch_size=64, max_batch_size=1024).best(curve, 8)[0]

    assert best(0.0, FLAT) == 64
    assert best(1e6, FLAT) == 1024
    assert best(64.0, LINEAR) <= best(64.0, FLAT)


@pytest.mark.parametrize("changes", [{"batch_size": 8}, {"noise_scale": -1.0}, {"compute": 2.0}, {"min_batch_size": 0}])
def test_a_goodput_that_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Goodput(**({"batch_size": 64, "noise_scale": 1.0, "min_batch_size": 16, "max_batch_size": 128} | changes))  # type: ignore[arg-type]


def test_a_job_s_rate_follows_the_chosen_batch_size() -> None:
    model = Goodput.assumed(64)
    spec = job("a", 100.0, FLAT, batch_size=64, goodput=model)
    assert spec.rate(((GPU, 8),), batch_size=128) == pytest.approx(model.rate(FLAT, 8, 128))
    assert spec.rate(((GPU, 8),)) == FLAT.rate(8)


def test_pollux_chooses_a_batch_size_and_says_so() -> None:
    spec = job("a", 100.0, FLAT, batch_size=64, goodput=Goodput.assumed(64))
    share = Pollux().decide(view_of(Cluster.parse("1x8"), waiting(spec)), None).shares[JobId("a")]
    assert share.batch_size == Goodput.assumed(64).best(FLAT, share.num_devices)[0] > 64
    assert f"at batch size {share.batch_size}" in share.why
    plain = job("a", 100.0, FLAT, batch_size=64)
    assert Pollux().decide(view_of(Cluster.parse("1x8"), waiting(plain)), None).shares[JobId("a")].batch_size == 0


def test_the_power_trades_efficiency_for_fairness() -> None:
    half_way = ScalingCurve(((1, 1.0), (2, 1.6), (4, 2.4)))
    steep = ScalingCurve(((1, 1.0), (2, 2.0), (4, 4.0), (7, 7.0)))
    jobs = waiting(job("half", 100.0, half_way), job("steep", 100.0, steep))
    # Speed-ups over a fair 4: 1 and 1, or 0.42 and 1.75. The sum prefers the second, the harmonic mean the first.
    assert counts(Pollux(), jobs) == {"half": 4, "steep": 4}
    assert counts(Pollux(power=1.0), jobs) == {"half": 1, "steep": 7}


def test_a_young_job_is_not_restarted_for_a_small_gain() -> None:
    held = JobState(job("a", 1e5, FLAT), 0.0, counts=((GPU, 4),), started_s=0.0)
    view = view_of(Cluster.parse("1x8"), [held], 5.0)
    assert Pollux().decide(view, None).shares[JobId("a")].num_devices == 4
    old = view_of(Cluster.parse("1x8"), [held], 1e6)
    assert Pollux().decide(old, None).shares[JobId("a")].num_devices == 8


choices = st.lists(
    st.builds(
        lambda gains: Choice(tuple(range(len(gains) + 1)), (0.0, *gains), 0),
        st.lists(st.floats(-1.0, 5.0), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@given(choices, st.integers(0, 12), st.integers(0, 3))
def test_the_search_keeps_to_the_capacity_and_never_gets_worse(found: list[Choice], capacity: int, seed: int) -> None:
    start = raised(found, capacity, [len(choice.sizes) - 1 for choice in found])
    before = sum(choice.values[at] for choice, at in zip(found, start, strict=True))
    value, picked = improve(found, capacity, start, Random(seed), 200)
    assert sum(choice.sizes[at] for choice, at in zip(found, picked, strict=True)) <= capacity
    assert value >= before - 1e-9
    assert improve(found, capacity, start, Random(seed), 200) == (value, picked)


@given(
    job_lists(),
    clusters,
    overheads,
    st.sampled_from([Optimus(), Optimus(interval_s=0.0), Pollux(), Pollux(assume=True)]),
)
def test_every_job_ends(jobs: list[JobSpec], cluster: Cluster, costs: Overheads, policy: Optimus | Pollux) -> None:
    result = Simulation(SimConfig(cluster=cluster, overheads=costs), jobs, policy).run().result()
    assert all(o.finished_s is not None for o in result.outcomes)
