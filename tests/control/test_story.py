"""Facts in sentences."""

from melodeon.control.events import (
    AnyFact,
    CurveMeasured,
    Ended,
    Entry,
    Judged,
    Launched,
    Paused,
    Planned,
    Sized,
    Started,
    Submitted,
    Training,
)
from melodeon.control.story import sentence, story_of
from melodeon.core.cluster import DeviceType

AT = 1_000_000.0


def measured(rate: float, *struck: int) -> CurveMeasured:
    return CurveMeasured(
        job="a-1", signature="s", device_type="cpu", points={1: rate}, source="measured", struck=struck
    )


def test_of_measurements_in_a_row_the_last_is_told() -> None:
    facts: list[AnyFact] = [
        Submitted(job="a-1", number=1, user="ann", spec={"steps": 1}, deadline_at=None, signature="s", measure=False),
        measured(1.0),
        Paused(job="a-1", incarnation=1, pause_s=0.5),
        measured(2.0),
        measured(3.0, 4),
        measured(5.0),
    ]
    told = [part.text for part in story_of([Entry(seq, AT + seq, fact) for seq, fact in enumerate(facts)], AT + 9)]
    assert told[0] == "submitted by ann: 1 step; best effort, no deadline"
    assert told[1] == "steps a second measured: 2 on 1", "the figure before it is left out"
    assert told[2].startswith("steps a second measured: 3 on 1; 4 workers are slower than fewer")
    assert told[3] == "steps a second measured: 5 on 1"


def test_how_far_it_is_and_how_large_is_told_once() -> None:
    facts: list[AnyFact] = [
        Submitted(job="a-1", number=1, user="ann", spec={"steps": 9}, deadline_at=None, signature="s", measure=False),
        Sized(job="a-1", virtual_workers=4, total_steps=None, steps_per_epoch=None),
        Sized(job="a-1", virtual_workers=4, total_steps=9, steps_per_epoch=3),
        Planned(job="a-1", counts=((DeviceType("cpu"), 1),), placement=(), slots={"n": (0,)}, why="it is free"),
        Launched(job="a-1", incarnation=1, slots={"n": (0,)}),
        Training(job="a-1", incarnation=1, step=2),
    ]
    told = [part.text for part in story_of([Entry(seq, AT + seq, fact) for seq, fact in enumerate(facts)], AT + 9, 5)]
    assert told[1] == "has 9 steps in all, 3 an epoch, 4 virtual workers"
    assert told[-2] == "trains, at step 2", "where it was seen, which is not where it began"
    assert told[-1] == "is running now, 5 of 9 steps done"


def test_a_story_never_goes_back_and_what_is_lost_is_not_counted() -> None:
    cpu = ((DeviceType("cpu"), 1),)
    facts: list[AnyFact] = [
        Submitted(job="a-1", number=1, user="ann", spec={"steps": 900}, deadline_at=None, signature="s", measure=False),
        Judged(job="a-1", admitted=True, why=""),
        Planned(job="a-1", counts=cpu, placement=(), slots={"n": (0,)}, why="it is free"),
        Launched(job="a-1", incarnation=1, slots={"n": (0,)}),
        Training(job="a-1", incarnation=1),
        Planned(job="a-1", counts=(), placement=(), slots={}, why="the node is drained"),
        Ended(job="a-1", incarnation=1, status="stopped", step=46),
        Planned(job="a-1", counts=cpu, placement=(), slots={"n": (0,)}, why="it is free"),
        Launched(job="a-1", incarnation=2, slots={"n": (0,)}),
        Training(job="a-1", incarnation=2, step=46),
        Ended(job="a-1", incarnation=2, status="lost", step=810),
        Launched(job="a-1", incarnation=3, slots={"n": (0,)}),
        Training(job="a-1", incarnation=3, step=46),
    ]
    told = story_of([Entry(seq, AT + seq, fact) for seq, fact in enumerate(facts)], AT + 99)
    moments = [part.at for part in told if part.at is not None]
    assert moments == sorted(moments)
    assert "waited 2 s" in [part.text for part in told]
    assert told[-1].text == "is running now, 46 of 900 steps done"


def test_one_of_a_kind_is_no_plural() -> None:
    started = Started(version="1", policy="fifo", nodes=(("n", "cpu", 1, ""),))
    assert sentence(started, AT) == "the controller started: 1 device on 1 node, policy fifo"


def test_a_target_that_was_reached_is_told() -> None:
    said = sentence(Ended(job="a-1", incarnation=1, status="done", step=99, reason="loss < 0.3 was reached"), AT)
    assert said == "trained to its end at step 99: loss < 0.3 was reached"
