from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.cluster import Counts, DeviceType
from melodeon.core.errors import UsageError
from melodeon.sched.easyscale_plan import Capability, evaluate, released, should_fall_back, top_plan

V100, P100, T4 = DeviceType("V100"), DeviceType("P100"), DeviceType("T4")
KINDS = (V100, P100, T4)
Case = tuple[int, list[Capability], Counts]


@st.composite
def cases(draw: st.DrawFn, most: int = 12) -> Case:
    kinds = KINDS[: draw(st.integers(1, 3))]
    interference = st.sampled_from([(1.0,), (1.0, 0.9), (1.0, 0.5), (1.0, 0.6, 0.55)])
    capabilities = [Capability(kind, draw(st.floats(0.2, 6.0)), draw(interference)) for kind in kinds]
    return draw(st.integers(1, most)), capabilities, tuple((kind, draw(st.integers(1, 5))) for kind in kinds)


@given(cases())
def test_the_equations_agree_with_a_synchronous_step(case: Case) -> None:
    plan = top_plan(*case)
    pairs = list(zip(plan.threads, plan.executors, case[1], strict=True))
    slowest = max(a / capability.per_executor(m) for a, m, capability in pairs)
    assert plan.rate == pytest.approx(1 / slowest)
    assert plan.waste >= 0
    assert 0 <= plan.waste_norm < 1
    total = sum(n * m * c.per_executor(m) for (_, n), (_, m, c) in zip(plan.counts, pairs, strict=True))
    assert plan.perf + plan.waste == pytest.approx(total)


@given(cases())
def test_every_virtual_worker_is_assigned_once(case: Case) -> None:
    plan = top_plan(*case)
    assigned = plan.assignment()
    assert sum(map(sum, assigned)) == case[0]
    for group, (_, count), executors, threads in zip(assigned, plan.counts, plan.executors, plan.threads, strict=True):
        assert len(group) == count * executors
        assert all(0 <= load <= threads for load in group)


@given(cases(most=7))
def test_no_other_configuration_is_faster(case: Case) -> None:
    virtual_workers, capabilities, counts = case
    best = top_plan(*case)
    for executors in product(*(range(1, len(c.interference) + 1) for c in capabilities)):
        for threads in product(range(virtual_workers + 1), repeat=len(counts)):
            if sum(n * m * a for (_, n), m, a in zip(counts, executors, threads, strict=True)) >= virtual_workers:
                other = evaluate(virtual_workers, capabilities, counts, executors, threads)
                assert other.perf <= best.perf * (1 + 1e-6)


@given(cases(), st.integers(1, 6))
def test_what_is_released_costs_no_speed(case: Case, least: int) -> None:
    _, capabilities, counts = case
    plan = top_plan(*case)
    lean = released(plan, capabilities, least)
    assert lean.perf == pytest.approx(plan.perf)
    assert lean.num_devices >= min(least, plan.num_devices)
    assert lean.waste <= plan.waste + 1e-9
    assert all(count <= dict(counts)[kind] for kind, count in lean.counts)
    if least == 1:
        assert all(load for group in lean.assignment() for load in group), "nobody is left without work"


def test_two_speeds_and_the_waste_of_whole_numbers() -> None:
    # ResNet-50 is 2.45 times as fast on a V100 as on a T4: 7 virtual workers go 5 + 2 (2.041 s), not 6 + 1 (2.449 s).
    plan = top_plan(7, [Capability(V100, 2.45), Capability(T4, 1.0)], ((V100, 1), (T4, 1)))
    assert plan.threads == (5, 2)
    assert plan.assignment() == ((5,), (2,))
    assert plan.rate == pytest.approx(2.45 / 5)
    assert plan.waste_norm == pytest.approx(1 - 7 * 2.45 / 5 / 3.45)
    assert str(plan) == "1 V100 x 5 + 1 T4 x 2"
    even = evaluate(8, [Capability(V100, 2.45), Capability(T4, 1.0)], ((V100, 1), (T4, 1)), (1, 1), (4, 4))
    assert even.waste_norm > 0.4, "an even split leaves the V100 idle for most of the step"


def test_devices_that_do_not_divide_the_virtual_workers_are_wasted() -> None:
    plan = top_plan(16, [Capability(V100, 1.0)], ((V100, 15),))
    assert (plan.threads, plan.waste_norm) == ((2,), pytest.approx(14 / 30))
    assert sorted(plan.assignment()[0]) == [1] * 14 + [2]
    assert released(plan, [Capability(V100, 1.0)]).counts == ((V100, 8),)


def test_a_second_executor_is_taken_when_interference_leaves_a_gain() -> None:
    def best(*interference: float) -> tuple[int, ...]:
        return top_plan(12, [Capability(V100, 1.0, interference)], ((V100, 2),)).executors

    assert best(1.0, 0.8) == (2,)
    assert best(1.0, 0.5) == (1,), "two at half speed are no faster than one"
    assert best(1.0, 0.4, 0.4) == (3,)


def test_a_reconfiguration_that_slowed_the_job_is_undone() -> None:
    assert should_fall_back(before_rate=1.5, measured_rate=1.4)
    assert not should_fall_back(before_rate=1.5, measured_rate=1.5)
    assert not should_fall_back(before_rate=1.5, measured_rate=1.6)
    assert not should_fall_back(before_rate=1.5, measured_rate=1.4, tolerance=0.1)


def test_values_that_make_no_sense_are_named() -> None:
    with pytest.raises(UsageError, match="T4 runs 0 virtual workers a second"):
        Capability(T4, 0)
    with pytest.raises(UsageError, match="interference"):
        Capability(T4, 1.0, (1.0, 1.2))
    with pytest.raises(UsageError, match="room for 4 virtual workers of 5"):
        evaluate(5, [Capability(T4, 1.0)], ((T4, 2),), (1,), (2,))
    with pytest.raises(UsageError, match="needs a device"):
        top_plan(5, [], ())
