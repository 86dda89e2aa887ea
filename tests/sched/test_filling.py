from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from melodeon.core.curve import Ladder, ScalingCurve
from melodeon.core.jobs import Goal, JobId
from melodeon.sched.filling import Ask, Grid, Reservation, fill, kept, reserve, set_aside
from melodeon.sched.pool import NOTHING, Member, Pool, has_room, rearranged, refresh, with_newcomer
from melodeon.sched.profile import Profile

FIGURE_4 = ScalingCurve(((1, 1.0), (2, 1.5), (4, 2.0))).ladder()
UNITS = Grid(0.0, 1.0)


def ask(work: float, deadline_s: float, ladder: Ladder = FIGURE_4, name: str = "c", pause_s: float = 0.0) -> Ask:
    return Ask(JobId(name), ladder, (pause_s,) * len(ladder.levels), work, deadline_s)


def test_figure_4_alone_job_c_needs_two_devices_for_two_units() -> None:
    found = fill(Profile(0.0, 4), ask(3.0 - 1e-6, 2.0), UNITS)
    assert found is not None
    assert found.blocks == ((0.0, 2.0, 2),)


def test_figure_4_beside_a_and_b_job_c_needs_one_then_four() -> None:
    profile = Profile(0.0, 4)
    profile.add(0.0, 1.0, 3)
    found = fill(profile, ask(3.0 - 1e-6, 2.0), UNITS)
    assert found is not None
    assert found.blocks == ((0.0, 1.0, 1), (1.0, 2.0, 4))
    assert sum((stop - start) * workers for start, stop, workers in found.blocks) == 5


def test_figure_4_more_than_that_cannot_be_met() -> None:
    profile = Profile(0.0, 4)
    profile.add(0.0, 1.0, 3)
    assert fill(profile, ask(3.1, 2.0), UNITS) is None


def test_a_reservation_lies_as_late_as_it_can_on_the_grid() -> None:
    found = fill(Profile(0.0, 4), ask(10.0, 100.5), Grid(0.0, 30.0))
    assert found is not None
    assert found.blocks == ((90.0, 100.5, 1),)
    assert found.workers_at(89.0) == 0
    assert found.next_above(0.0, 0) == 90.0
    assert found.next_above(0.0, 1) is None


def test_a_pause_is_paid_for_in_advance() -> None:
    without = fill(Profile(0.0, 4), ask(50.0, 100.0), UNITS)
    with_pause = fill(Profile(0.0, 4), ask(50.0, 100.0, pause_s=7.0), UNITS)
    assert without is not None
    assert with_pause is not None
    assert without.blocks[0][0] - with_pause.blocks[0][0] == 7.0


def test_a_job_that_runs_already_at_its_level_pays_no_pause_for_going_on() -> None:
    going_on = replace(ask(100.0, 100.0 + 1e-3, pause_s=7.0), held=1)
    found = fill(Profile(0.0, 1), going_on, UNITS)
    assert found is not None
    assert found.blocks == ((0.0, 100.0 + 1e-3, 1),)
    assert fill(Profile(0.0, 1), replace(going_on, held=0), UNITS) is None
    assert fill(Profile(0.0, 1), replace(going_on, resume_s=3.0), UNITS) is None


def test_a_kept_reservation_gives_up_its_beginning_when_the_job_is_ahead() -> None:
    plan = Reservation(((10.0, 110.0, 1),), 1)
    ahead = kept(plan, ask(40.0, 110.0), UNITS)
    assert ahead is not None
    assert ahead.blocks[0][0] in (69.0, 70.0)
    assert kept(plan, ask(120.0, 110.0), UNITS) is None


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6)), max_size=12),
    st.integers(0, 40),
    st.integers(1, 40),
)
def test_the_profile_is_the_sum_of_what_was_added(
    promises: list[tuple[int, int, int]], start: int, length: int
) -> None:
    profile = Profile(0.0, 1000)
    for first, span, devices in promises:
        profile.add(float(first), float(first + span), devices)

    def used(moment: float) -> int:
        return sum(devices for first, span, devices in promises if first <= moment < first + span)

    moments = [m / 2 for m in range(2 * start, 2 * (start + length))]
    assert profile.peak(float(start), float(start + length)) == max(used(m) for m in moments)
    later = profile.since(float(start))
    assert later.peak(float(start), float(start + length)) == max(used(m) for m in moments)
    assert all(before != after for before, after in pairwise(later.used)), "no cut without a step"
    copy = profile.copy()
    for first, span, devices in promises:
        copy.add(float(first), float(first + span), -devices)
    assert set(copy.used) == {0}


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=8),
)
def test_theorem_1_on_linear_curves(devices: int, jobs: list[tuple[int, int]]) -> None:
    # All deadlines can be met exactly if, in order of deadline, the device time needed so far fits (equation 1).
    ladder = ScalingCurve(tuple((n, float(n)) for n in range(1, devices + 1))).ladder()
    ordered = sorted(jobs, key=lambda entry: entry[1])
    loads = [sum(work for work, _ in ordered[: i + 1]) / (devices * ordered[i][1]) for i in range(len(ordered))]
    assume(all(abs(load - 1) > 1e-4 for load in loads))
    asks = {JobId(str(i)): ask(float(w), float(d), ladder, str(i)) for i, (w, d) in enumerate(jobs)}
    empty = {name: Member(Goal.HARD, NOTHING, one, 0.0) for name, one in asks.items()}
    old = Pool(0.0, empty, frozenset(), Profile(0.0, devices))
    pool = refresh(old, asks, Grid(0.0, 1e-7), devices, 0)
    assert (not pool.late) == (max(loads) <= 1)


def as_printed(devices: int, rates: list[list[float]], work: list[float], due: list[int]) -> list[list[int]] | None:
    """ElasticFlow's Algorithm 1, line by line: devices of each job in each slot; None: somebody would be late."""
    free, given_ = [devices] * max(due), []
    for rate, needed, deadline in zip(rates, work, due, strict=True):
        for level in range(1, devices + 1):
            slots, trained = [0] * max(due), 0.0
            for slot in reversed(range(deadline)):
                slots[slot] = min(level, free[slot])
                trained += rate[slots[slot]]
                if trained >= needed:
                    break
            if trained >= needed:
                break
        else:
            return None
        free = [left - taken for left, taken in zip(free, slots, strict=True)]
        given_.append(slots)
    return given_


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6), st.floats(0.2, 20), st.integers(1, 8)),
        min_size=1,
        max_size=6,
    ),
)
def test_algorithm_1_in_slots_gives_every_job_the_same_in_every_slot(
    devices: int, jobs: list[tuple[list[float], float, int]]
) -> None:
    ordered = sorted(jobs, key=lambda entry: entry[2])
    # Each device adds at most as much as the one before: concave, as the paper has them.
    rates = [[0.0, *accumulate(sorted(gains, reverse=True))] for gains, _, _ in ordered]
    work, due = [needed for _, needed, _ in ordered], [deadline for _, _, deadline in ordered]
    expected = as_printed(devices, rates, [(1 - 1e-6) * needed for needed in work], due)
    assume(expected == as_printed(devices, rates, [(1 + 1e-6) * needed for needed in work], due))
    asks = {}
    for index, rate in enumerate(rates):
        ladder = ScalingCurve(tuple((n, rate[n]) for n in range(1, devices + 1))).ladder()
        asks[JobId(str(index))] = ask(work[index], float(due[index]), ladder, str(index))
    empty = {name: Member(Goal.HARD, NOTHING, one, 0.0) for name, one in asks.items()}
    pool = refresh(Pool(0.0, empty, frozenset(), Profile(0.0, devices)), asks, UNITS, devices, 0)
    assert (not pool.late) == (expected is not None)
    for name, slots in enumerate(expected or ()):
        plan = pool.members[JobId(str(name))].plan
        assert [plan.workers_at(float(slot)) for slot in range(len(slots))] == slots


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.floats(1, 500), st.floats(10, 400), st.floats(0, 20)), min_size=2, max_size=10),
    st.integers(0, 1),
)
def test_room_for_a_newcomer_is_made_as_if_everybody_were_filled_anew(
    devices: int, jobs: list[tuple[float, float, float]], spare: int
) -> None:
    asks = [ask(work, due, name=str(k), pause_s=pause) for k, (work, due, pause) in enumerate(jobs)]
    newcomer, members = asks[-1], {one.job: Member(Goal.HARD, NOTHING, one, 0.0) for one in asks[:-1]}
    old = Pool(0.0, members, frozenset(), Profile(0.0, devices))
    pool = refresh(old, {one.job: one for one in asks[:-1]}, UNITS, devices, spare)
    assume(pool.queue is not None)
    grown = rearranged(pool, newcomer, UNITS, spare)
    assert grown == rearranged(replace(pool, queue=None), newcomer, UNITS, spare)
    beside = with_newcomer(pool, newcomer, Goal.HARD, UNITS, spare)
    assert has_room(pool, newcomer, UNITS, spare) == (beside is not None or grown is not None)


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.floats(1, 500), st.floats(10, 400), st.floats(0, 20)), min_size=1, max_size=10),
    st.sampled_from([Grid(0.0, 1.0), Grid(0.0, 30.0)]),
)
def test_reservations_never_exceed_the_devices_and_are_worth_what_they_must_be(
    devices: int, jobs: list[tuple[float, float, float]], grid: Grid
) -> None:
    profile = Profile(0.0, devices)
    for index, (work, deadline, pause) in enumerate(sorted(jobs, key=lambda entry: entry[1])):
        wanted = ask(work, deadline, name=str(index), pause_s=pause)
        found = fill(profile, wanted, grid)
        if found is None:
            continue
        reserve(profile, found)
        assert max(profile.used) <= devices
        trained, before = 0.0, None
        for start, stop, workers in found.blocks:
            lost = 0.0 if before == (start, workers) else pause
            trained += wanted.ladder.rate(workers) * (min(stop, deadline) - start - lost)
            before = (stop, workers)
        assert trained >= work
        assert found.slack == pytest.approx(trained - work, abs=1e-3)


def test_promises_in_a_row_are_one_segment() -> None:
    profile = Profile(0.0, 2)
    for start in range(100):
        profile.add(10.0 + start, 12.0 + start, 1)
    assert profile.times == [0.0, 10.0, 11.0, 110.0, 111.0]
    assert profile.used == [0, 1, 2, 1, 0]
    profile.add(50.0, 60.0, -1)
    assert [profile.peak(at, at + 0.5) for at in (49.0, 50.0, 59.0, 60.0)] == [2, 1, 1, 2]
    profile.add(50.0, 60.0, 1)
    assert profile.times == [0.0, 10.0, 11.0, 110.0, 111.0]


def test_what_was_useless_once_is_looked_at_again_when_something_is_taken_back() -> None:
    profile, wanted = Profile(0.0, 1), ask(5.0, 100.0)
    profile.add(0.0, 100.0, 1)
    assert fill(profile, wanted, UNITS) is None
    profile.add(20.0, 60.0, -1)
    found = fill(profile, wanted, UNITS)
    assert found is not None
    assert found.blocks[-1][1] == 60.0
    reserve(profile, found)
    later = fill(profile, replace(wanted, deadline_s=99.0), UNITS)
    assert later is not None
    assert later.blocks[-1][1] == found.blocks[0][0]


spans = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4))


@given(st.lists(spans, max_size=15))
def test_devices_are_promised_just_where_they_are_left(wanted: list[tuple[int, int, int]]) -> None:
    profile = Profile(0.0, 6)
    for start, length, devices in wanted:
        expected, fits = profile.copy(), profile.peak(start, start + length) + devices <= 6
        if fits:
            expected.add(start, start + length, devices)
        assert profile.promise(start, start + length, devices) == fits
        assert profile == expected


def test_what_is_set_aside_is_written_down_and_what_is_only_asked_for_is_not() -> None:
    profile, wanted = Profile(0.0, 4), ask(10.0, 20.0)
    found = fill(profile, wanted, UNITS)
    assert profile == Profile(0.0, 4)
    assert set_aside(profile, wanted, UNITS) == found
    assert found is not None
    reserve(profile, found, -1)
    assert profile.peak(0.0, 20.0) == 0
    full = Profile(0.0, 0)
    assert set_aside(full, wanted, UNITS) is None
    assert full == Profile(0.0, 0)
