"""Chronus and its integer programme."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import Cluster
from melodeon.core.clusterview import JobState
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.overhead import Overheads
from melodeon.sched.chronus import Chronus
from melodeon.sched.leases import Bounds, Claim, solve
from melodeon.sim.engine import SimConfig, Simulation
from tests.sched.draws import clusters, job, job_lists, overheads, view_of

LINEAR = ScalingCurve.linear(1.0, 8)
BOUNDS = Bounds(1000, 30.0)


def claim(name: str, workers: int, needs_s: float, deadline_s: float, weight: float = 1.0) -> Claim:
    return Claim(JobId(name), workers, needs_s, deadline_s, weight, False)


def test_most_deadlines_are_met_rather_than_the_earliest() -> None:
    large = claim("large", 4, 100.0, 100.0)
    small = [claim("a", 2, 100.0, 110.0), claim("b", 2, 100.0, 110.0)]
    answer = solve([large, *small], 4, 0.0, 100.0, 100.0, BOUNDS)
    assert answer.in_time == answer.first == {"a", "b"}


def test_a_job_that_can_wait_gives_the_lease_to_one_that_cannot() -> None:
    answer = solve([claim("soon", 4, 100.0, 100.0), claim("late", 4, 100.0, 250.0)], 4, 0.0, 100.0, 100.0, BOUNDS)
    assert answer.in_time == {"soon", "late"}
    assert answer.first == {"soon"}


claims = st.lists(
    st.builds(
        lambda workers, needs, slack: (workers, needs, needs + slack),
        st.integers(1, 4), st.integers(1, 4), st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


def feasible(jobs: list[tuple[int, int, int]], devices: int) -> bool:
    """Whether all jobs can be in time, by trying every lease (unit leases, whole needs)."""
    if not jobs:
        return True
    (workers, needs, due), rest = jobs[0], jobs[1:]

    def place(free: tuple[int, ...], left: list[tuple[int, int, int]]) -> bool:
        if not left:
            return True
        (w, n, d), more = left[0], left[1:]
        for slots in combinations(range(d), n):
            if all(free[s] >= w for s in slots):
                after = tuple(f - w if s in slots else f for s, f in enumerate(free))
                if place(after, more):
                    return True
        return False

    return place((devices,) * 7, [(workers, needs, due), *rest])


@settings(max_examples=40)
@given(claims)
def test_the_programme_finds_as_many_as_there_can_be(drawn: list[tuple[int, int, int]]) -> None:
    asked = [claim(str(i), w, 100.0 * n, min(600.0, 100.0 * d)) for i, (w, n, d) in enumerate(drawn)]
    jobs = [(w, n, min(6, d)) for w, n, d in drawn]
    answer = solve(asked, 4, 0.0, 100.0, 100.0, BOUNDS)
    most = max(
        size
        for size in range(len(jobs) + 1)
        if any(feasible([jobs[i] for i in chosen], 4) for chosen in combinations(range(len(jobs)), size))
    )
    assert len(answer.in_time) == most
    assert answer.first <= answer.in_time
    assert sum(c.workers for c in asked if c.job in answer.first) <= 4


def test_deadlines_come_first_and_best_effort_takes_the_rest() -> None:
    jobs = [
        job("easy", 10.0, LINEAR, requested_workers=4),
        job("small", 5.0, LINEAR, requested_workers=4),
        job("due", 4000.0, LINEAR, requested_workers=4, deadline_s=1100.0),
        job("lost", 4000.0, LINEAR, requested_workers=4, deadline_s=20.0),
    ]
    view = view_of(Cluster.parse("1x8"), [JobState(spec, 0.0) for spec in jobs], overheads=Overheads.none())
    shares = Chronus().decide(view, None).shares
    assert set(shares) == {"due", "small"}
    assert "deadlines" in shares[JobId("due")].why


def test_a_lease_is_not_broken() -> None:
    easy = job("easy", 8000.0, LINEAR, requested_workers=8)
    due = job("due", 800.0, LINEAR, requested_workers=8, deadline_s=2000.0, submit_s=50.0)
    config = SimConfig(cluster=Cluster.parse("1x8"), overheads=Overheads.none())
    result = Simulation(config, [easy, due], Chronus(lease_s=600.0)).run().result()
    assert {o.id: (o.started_s, o.finished_s) for o in result.outcomes}["due"] == (600.0, pytest.approx(700.0))


@settings(max_examples=30)
@given(job_lists(), clusters, overheads, st.integers(1, 3))
def test_any_bound_gives_a_right_answer(
    jobs: list[JobSpec], cluster: Cluster, costs: Overheads, max_nodes: int
) -> None:
    policy = Chronus(max_jobs=4, max_nodes=max_nodes)
    result = Simulation(SimConfig(cluster=cluster, overheads=costs), jobs, policy).run().result()
    assert all(o.finished_s is not None for o in result.outcomes)


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="lease_s=0 must be at least 1 s"):
        Chronus(lease_s=0.0)
    with pytest.raises(UsageError, match="above 0"):
        Chronus(max_jobs=0)


def test_in_whole_leases_a_job_needs_every_one_that_it_begins() -> None:
    # 10 s longer than a lease, and the second lease would end after the deadline.
    state = JobState(job("a", 110.0, LINEAR, deadline_s=195.0), admitted_s=0.0)
    view = view_of(Cluster.parse("1x1"), [state], overheads=Overheads.none())

    def chosen(whole: bool) -> set[str]:
        state = Chronus(lease_s=100.0, whole_leases=whole).decide(view, None).state
        return set(state.chosen)  # type: ignore[attr-defined]

    assert chosen(whole=False) == {"a"}
    assert chosen(whole=True) == set()
