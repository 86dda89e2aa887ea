"""Facts in sentences."""

from melodeon.control.events import AnyFact, CurveMeasured, Entry, Paused, Started, Submitted
from melodeon.control.story import sentence, story_of

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


def test_one_of_a_kind_is_no_plural() -> None:
    started = Started(version="1", policy="fifo", nodes=(("n", "cpu", 1, ""),))
    assert sentence(started, AT) == "the controller started: 1 device on 1 node, policy fifo"
