"""Elan's foresight: its own form of the allocation rule gives what the rule gives, and its sums are of the ends."""

from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.curve import Ladder, ScalingCurve
from melodeon.core.jobs import JobId
from melodeon.sched.climbing import Climber, climb, time_saved
from melodeon.sched.foresight import Runner, reach, runner, seconds_to_ends


@st.composite
def uneven_ladders(draw: st.DrawFn) -> Ladder:
    """Steps of any size, a large gain behind a small one among them; perhaps no step at all."""
    steps = draw(st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 4.0)), max_size=6))
    levels, rates = [draw(st.integers(1, 3))], [draw(st.floats(0.1, 2.0))]
    for more, faster in steps:
        levels.append(levels[-1] + more)
        rates.append(rates[-1] + faster)
    return Ladder(tuple(levels), tuple(rates))


work_left = st.one_of(st.floats(0.0, 1e6), st.sampled_from([0.0, 60.0, 600.0]))
runners = st.builds(runner, uneven_ladders(), work_left)


@given(st.lists(runners, max_size=12), st.integers(0, 60))
def test_its_own_form_of_the_allocation_rule_gives_the_same(running: list[Runner], more: int) -> None:
    capacity = sum(one.ladder.levels[0] for one in running) + more
    climbers = [
        Climber(JobId(str(place)), one.ladder, one.ladder.levels[0], one.ladder.rates[0], one.work)
        for place, one in enumerate(running)
    ]
    wanted = [given.workers for given in climb(climbers, more, time_saved).values()]
    reached = reach(running, [one.work for one in running], capacity)
    assert [one.ladder.levels[level] for one, level in zip(running, reached, strict=True)] == wanted


def test_the_ends_of_two_jobs_are_added_up() -> None:
    flat = ScalingCurve.linear(1.0, 1).ladder()
    here, newcomer = [runner(flat, 100.0)], runner(flat, 30.0)
    # Two devices: both run at once.
    assert seconds_to_ends(here, newcomer, 2, waits=False) == 130.0
    # One device: the newcomer waits for the end of the other, after 100 s.
    assert seconds_to_ends(here, newcomer, 1, waits=True) == 100.0 + 130.0


def test_a_newcomer_makes_the_others_slower_if_it_starts_at_once() -> None:
    linear = ScalingCurve.linear(1.0, 4).ladder()
    here, newcomer = [runner(linear, 100.0)], runner(linear, 100.0)
    # On two each both need 50 s; in turn on all four they need 25 s and 50 s.
    assert seconds_to_ends(here, newcomer, 4, waits=False) == 100.0
    assert seconds_to_ends(here, newcomer, 4, waits=True) == 75.0
