"""Scaling curves from what is known: better knowledge wins, guesses fade, and what is slower is struck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.control.curves import (
    NOTHING,
    Curve,
    corrections,
    guessed,
    scaling,
    signature_of,
    sizes,
    slower,
)
from tests.control.stage import spec

POINTS = st.dictionaries(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), st.floats(0.01, 1e4), max_size=5)


def test_sizes_are_powers_of_two_and_the_bounds() -> None:
    assert sizes(1, 8) == (1, 2, 4, 8)
    assert sizes(3, 12) == (3, 4, 8, 12)
    assert sizes(5, 5) == (5,)


def test_measured_beats_profiled_beats_given() -> None:
    curve = NOTHING.learn({1: 1.0, 2: 2.0}, "profiled").learn({2: 1.5}, "measured")
    assert curve.points == {1: 1.0, 2: 1.5}
    assert curve.learn({2: 9.0, 4: 3.0}, "profiled").points == {1: 1.0, 2: 1.5, 4: 3.0}
    made = scaling(curve, {1: 100.0, 4: 2.5}, 1, 8, promised=True)
    assert made is not None
    assert made.points == ((1, 1.0), (2, 1.5), (4, 2.5)), "a curve that was given ends where it ends"


def test_beyond_what_was_measured_gains_fade() -> None:
    made = scaling(Curve({1: 10.0, 2: 18.0}, {1: "profiled", 2: "profiled"}), {}, 1, 16, promised=True)
    assert made is not None
    gains = [made.rate(2 * size) / made.rate(size) for size in (1, 2, 4, 8)]
    assert gains == sorted(gains, reverse=True)
    assert gains[1] == pytest.approx(1 + 0.8 * 0.8)
    flat = scaling(Curve({1: 10.0, 2: 10.1}, {1: "profiled", 2: "profiled"}), {}, 1, 16, promised=True)
    assert flat is not None
    assert flat.points[-1][0] == 2, "more workers do not help"


def test_a_struck_size_and_all_above_are_not_considered() -> None:
    assert slower({1: 5.0, 2: 9.0, 4: 8.0, 8: 12.0}, ()) == (4,)
    assert slower({1: 5.0, 2: 9.0, 4: 8.9}, ()) == (), "less is noise"
    curve = Curve({1: 5.0, 2: 9.0, 4: 8.0}, dict.fromkeys((1, 2, 4), "measured"), (4,))
    made = scaling(curve, {}, 1, 8, promised=False)
    assert made is not None
    assert made.points == ((1, 5.0), (2, 9.0))


def test_small_differences_are_no_corrections() -> None:
    assert corrections({1: 10.0, 2: 18.0}, {1: 10.4, 2: 20.0, 4: 30.0}) == {2: 20.0, 4: 30.0}


def test_the_signature_is_what_the_speed_depends_on() -> None:
    one = signature_of(spec(deadline="1h"), "digest")
    assert one == signature_of(spec("other", steps=7), "digest"), "neither the name nor the length counts"
    assert one != signature_of(spec(), "another")
    assert one != signature_of(spec(virtual_workers=16), "digest")
    assert one != signature_of(spec(env={"BATCH": "2"}), "digest")


@given(POINTS, POINTS, st.integers(1, 8), st.integers(0, 24), st.booleans())
def test_every_curve_is_one_that_policies_take(
    measured: dict[int, float], written: dict[int, float], least: int, more: int, promised: bool
) -> None:
    curve = Curve(measured, dict.fromkeys(measured, "measured"), slower(measured, ()))
    made = scaling(curve, written, least, least + more, promised=promised)
    if not measured and not written:
        assert made is None
        made = guessed(least, least + more)
    assert made is not None
    levels = made.ladder(least, least + more).levels
    assert levels
    assert levels[0] == least
    assert levels[-1] <= least + more
