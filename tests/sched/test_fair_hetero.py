"""VirtualFlow's heterogeneous solver, on its own figures and against an exhaustive search."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal, JobId, JobSpec
from melodeon.sched.hetero import Split, mixed_rate, sizes_up_to, solve

V100, P100 = DeviceType("V100"), DeviceType("P100")
SIZES = sizes_up_to(256)
V100_TIMES = {size: 0.02 + size * 0.002 for size in SIZES}
P100_TIMES = {size: 4 * seconds for size, seconds in V100_TIMES.items()}
"""Four times as slow, as the paper says of ResNet-50."""
BOTH = {V100: V100_TIMES, P100: P100_TIMES}


def samples(split: Split) -> dict[str, int]:
    return {part.kind: part.virtual_workers * part.batch for part in split.parts}


def test_sizes_are_powers_of_two_and_their_mid_points() -> None:
    assert sizes_up_to(200) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]


def test_two_slow_devices_are_not_worth_mixing_with_two_four_times_as_fast() -> None:
    # The paper's group H1: an uneven split beats an even one by far, and V100 alone is as good.
    split = solve(8192, {V100: 2, P100: 2}, BOTH)
    assert split is not None
    assert samples(split) == {"V100": 4096}
    even = 2048 / 256 * P100_TIMES[256]
    assert split.step_s < 0.56 * even, "at least the 44 % of the paper's figure 7"
    faster = solve(8192, {V100: 2, P100: 4}, BOTH)
    assert faster is not None
    assert samples(faster) == {"V100": 3072, "P100": 512}


def test_eight_slow_devices_are_worth_mixing_in() -> None:
    alone = solve(8192, {V100: 2}, BOTH)
    mixed = solve(8192, {V100: 2, P100: 8}, BOTH)
    assert alone is not None
    assert mixed is not None
    assert samples(mixed) == {"V100": 2048, "P100": 512}
    assert alone.step_s / mixed.step_s > 1.42


def test_it_falls_back_to_one_type_where_mixing_does_not_pay() -> None:
    slow = {size: 40 * seconds for size, seconds in V100_TIMES.items()}
    split = solve(1024, {V100: 2, P100: 2}, {V100: V100_TIMES, P100: slow}, comm_s=0.01)
    assert split is not None
    assert len(split.parts) == 1
    demanding = solve(8192, {V100: 2, P100: 2}, BOTH, min_gain=1.0)
    assert demanding is not None
    assert len(demanding.parts) == 1


def test_what_cannot_be_covered_has_no_split_and_bad_profiles_are_named() -> None:
    assert solve(7, {V100: 1}, BOTH) is None
    assert solve(8, {V100: 1}, {}) is None
    with pytest.raises(UsageError, match=r"V100 profile has -1\.0 s for a batch of 8"):
        solve(8, {V100: 1}, {V100: {8: -1.0}})
    with pytest.raises(UsageError, match="batch=0"):
        solve(0, {V100: 1}, BOTH)


times = st.dictionaries(st.sampled_from(sizes_up_to(32)), st.floats(0.01, 2.0), min_size=1, max_size=5)


@settings(max_examples=60)
@given(st.integers(1, 48), st.integers(0, 4), st.integers(0, 4), times, times, st.floats(0, 0.5))
def test_never_slower_than_one_type_and_exact_over_its_candidates(
    batch: int, first: int, second: int, fast: dict[int, float], slow: dict[int, float], comm_s: float
) -> None:
    devices, profiles = {V100: first, P100: second}, {V100: fast, P100: slow}
    split = solve(batch, devices, profiles, comm_s=comm_s)
    for kind in devices:
        alone = solve(batch, {kind: devices[kind]}, profiles, comm_s=comm_s)
        if alone is not None:
            assert split is not None
            assert split.step_s <= alone.step_s + 1e-12
    ways = [_ways(devices[kind], profiles[kind], batch) for kind in devices]
    steps = [max(a[1], b[1]) + (comm_s if a[2] + b[2] > 1 else 0.0) for a, b in product(*ways) if a[0] + b[0] == batch]
    if split is None:
        assert not steps
        return
    assert split.step_s == pytest.approx(min(steps))
    assert sum(part.samples for part in split.parts) == batch
    assert all(part.num_devices <= devices[part.kind] for part in split.parts)


def _ways(count: int, profile: dict[int, float], batch: int) -> list[tuple[int, float, int]]:
    """(samples, seconds, devices) of every candidate."""
    found = [(0, 0.0, 0)]
    for used in {1, 2, 4, count}:
        for load, (size, seconds) in product(sizes_up_to(batch), profile.items()):
            if 0 < used <= count and load % size == 0:
                found.append((used * load, seconds * (load // size), used))
    return found


def test_a_mixture_runs_each_device_as_fast_as_in_a_group_of_its_size() -> None:
    spec = JobSpec(
        id=JobId("a"),
        iterations=1.0,
        curves=(
            (V100, ScalingCurve(((1, 4.0), (2, 8.0), (4, 12.0)))),
            (P100, ScalingCurve(((1, 1.0), (2, 2.0), (4, 3.0)))),
        ),
        goal=Goal.BEST_EFFORT,
    )
    assert mixed_rate(spec, ((V100, 2),)) == 8.0
    assert mixed_rate(spec, ((V100, 2), (P100, 2))) == 6.0 + 1.5
    assert mixed_rate(spec, ((V100, 2), (P100, 2))) < spec.rate(((V100, 2), (P100, 2)))
