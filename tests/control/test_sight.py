"""What is seen becomes few facts: only those that change a decision."""

import pytest

from melodeon.backends.fleet_values import Seen
from melodeon.control.events import CurveMeasured, Judged, Launched, Planned, SlotTable, Submitted, Training, Warned
from melodeon.control.sight import CORRECT_MOST_S, CORRECT_S, Sight
from melodeon.control.state import State, fold
from melodeon.control.story import sentence
from melodeon.core.cluster import DeviceType
from melodeon.core.plan import Block

CPU = DeviceType("cpu")
SPEC = {"name": "a", "run": ["train.py"], "steps": 100_000, "curve": {"1": 10.0}}


def running(count: int) -> State:
    """So many jobs of one script, the first of which trains."""
    state = State()
    for number in range(1, count + 1):
        name = f"a-{number}"
        fact = Submitted(job=name, number=number, user="u", spec=SPEC, deadline_at=None, signature="s", measure=False)
        fold(state, 0.0, fact)
        fold(state, 0.0, Judged(job=name, admitted=True, why=""))
    slots: SlotTable = {"node0": (0,)}
    fold(state, 0.0, Planned(job="a-1", counts=((CPU, 1),), placement=(Block(CPU, 0, 1),), slots=slots, why=""))
    fold(state, 0.0, Launched(job="a-1", incarnation=1, slots=slots))
    fold(state, 0.0, Training(job="a-1", incarnation=1))
    return state


def corrections(count: int, seconds: int) -> list[CurveMeasured]:
    """What is learnt in a while from a job whose speed goes up and down all the time."""
    state, sight = running(count), Sight({"node0": "cpu"})
    found = []
    for second in range(seconds):
        rate = 20.0 if second % 2 else 12.0
        seen = Seen(job="a-1", incarnation=1, alive=True, training=True, step=1, slots={"node0": (0,)}, rates={1: rate})
        for fact in sight.take(state, seen, 1000.0 + second):
            fold(state, 1000.0 + second, fact)
            if isinstance(fact, CurveMeasured):
                found.append(fact)
    return found


@pytest.mark.parametrize(("count", "apart_s"), [(1, CORRECT_S), (50, 5 * CORRECT_S), (1000, CORRECT_MOST_S)])
def test_a_curve_that_many_share_is_corrected_less_often(count: int, apart_s: float) -> None:
    most = int(240 / apart_s) + 1
    assert 0.5 * most <= len(corrections(count, 240)) <= most


def test_what_was_never_measured_is_learnt_at_once() -> None:
    assert corrections(1000, 1)[0].points == {1: 12.0}


def test_nothing_is_kept_of_jobs_that_are_gone() -> None:
    state, sight = running(2), Sight({"node0": "cpu"})
    seen = Seen(job="a-1", incarnation=1, alive=True, training=True, step=1, slots={"node0": (0,)}, rates={1: 20.0})
    assert list(sight.take(state, seen, 1000.0))
    sight.forget(State())
    assert not sight.seen
    assert not sight._corrected


def test_a_warning_is_told_once_whichever_start_says_it() -> None:
    state, sight = running(1), Sight({"node0": "cpu"})
    seen = Seen(job="a-1", incarnation=1, alive=True, training=True, warnings=("mind this", "and that"))
    facts = [fact for fact in sight.take(state, seen, 1000.0) if isinstance(fact, Warned)]
    assert [fact.text for fact in facts] == ["mind this", "and that"]
    assert [sentence(fact, 1000.0) for fact in facts] == ["warns: mind this", "warns: and that"]
    for fact in facts:
        fold(state, 1000.0, fact)
    assert not [fact for fact in sight.take(state, seen, 1001.0) if isinstance(fact, Warned)]
