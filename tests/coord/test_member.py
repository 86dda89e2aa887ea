"""The worker's half: newest views only, arming, giving up, leaving."""

import pytest

from melodeon.coord.member import Member
from melodeon.coord.messages import Notice
from melodeon.core.view import Seat, View


def view(generation: int, *workers: int, planned: bool = True, leaving: tuple[int, ...] = ()) -> View:
    seats = tuple(Seat(worker=worker, agent="a", host="h", count=1) for worker in workers)
    return View(generation=generation, seats=seats, planned=planned, meeting="file", reason="r", leaving=leaving)


def member(worker: int = 0) -> Member:
    """A member of generation 1 with worker 1."""
    made = Member(worker)
    made.on_notice(Notice(number=1, view=view(1, 0, 1, planned=False)))
    made.begin(1)
    made.prepare(1)
    made.enter()
    return made


def test_a_cold_worker_begins_any_view_at_once() -> None:
    for planned in (True, False):
        cold = Member(2)
        cold.on_notice(Notice(number=1, view=view(4, 0, 2, planned=planned)))
        assert cold.give_up is not None


def test_a_planned_view_is_prepared_then_armed_then_agreed_on() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(2, 0, 1, 2)))
    assert one.give_up is None
    assert one.to_prepare == one.view
    assert one.armed == 1
    assert one.prepare(2)
    assert one.armed == 2
    assert one.agreed(1) is None
    assert one.agreed(2) == one.view


def test_nobody_switches_before_all_are_armed() -> None:
    """One that is armed itself, and a leaver: what counts is the lowest that the step's header had from anybody."""
    stays, leaves = member(0), member(1)
    for one in (stays, leaves):
        one.on_notice(Notice(number=2, view=view(2, 0, 2, leaving=(1,))))
    stays.prepare(2)
    assert (stays.armed, leaves.armed) == (2, 2)
    for one in (stays, leaves):
        assert one.agreed(1) is None
        assert one.agreed(2) == one.view


def test_a_leaver_is_armed_at_once_and_waits_to_be_released() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(2, 1, leaving=(0,))))
    assert one.to_prepare is None
    assert one.armed == 2
    one.begin(2)
    assert one.leaving
    assert not one.may_end
    one.on_notice(Notice(number=3, released=True))
    assert one.may_end


def test_a_leaver_that_is_asked_back_begins_the_new_view() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(2, 1, leaving=(0,))))
    one.begin(2)
    one.on_notice(Notice(number=3, view=view(3, 1, 0, planned=False)))
    assert one.give_up is not None


def test_an_unplanned_view_is_begun_at_once_and_disarms_the_planned_one() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(2, 0, 1, 2)))
    one.prepare(2)
    one.on_notice(Notice(number=3, view=view(3, 0, 2, planned=False)))
    assert one.give_up == one.view
    assert one.armed == 1
    assert one.agreed(2) is None


def test_older_and_doubled_notices_are_refused() -> None:
    one = member()
    assert one.on_notice(Notice(number=5, stop=True))
    assert not one.on_notice(Notice(number=5, released=True))
    assert not one.on_notice(Notice(number=4, released=True))
    assert not one.released


def test_a_view_of_a_lower_generation_is_refused_even_in_a_newer_notice() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(3, 0, planned=False)))
    one.on_notice(Notice(number=3, view=view(2, 0, 1, planned=False)))
    assert one.view is not None
    assert one.view.generation == 3


def test_a_lower_generation_cannot_be_begun_or_prepared() -> None:
    one = member()
    with pytest.raises(AssertionError):
        one.begin(1)
    assert not one.prepare(1)


def test_a_group_that_a_newer_view_has_made_useless_is_not_armed() -> None:
    one = member()
    one.on_notice(Notice(number=2, view=view(2, 0, 1, 2)))
    one.on_notice(Notice(number=3, view=view(3, 0, 1, planned=False)))
    assert not one.prepare(2)


def test_the_newest_checkpoint_is_the_one_that_is_asked_for() -> None:
    one = member()
    one.on_notice(Notice(number=2, checkpoint=3))
    one.on_notice(Notice(number=3, checkpoint=2))
    assert one.checkpoint == 3
