"""Laws of the fold: phases move by the table, a draft is nobody's business, and the log can be cut anywhere."""

from random import Random
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.backends.fleet_values import How
from melodeon.control.curves import Known
from melodeon.control.events import (
    AnyFact,
    CancelAsked,
    CurveMeasured,
    Edited,
    EditRefused,
    Ended,
    Entry,
    Forgotten,
    Judged,
    Late,
    Launched,
    Moved,
    NodeSet,
    Overridden,
    Paused,
    Planned,
    PolicySet,
    ProfileFailed,
    Sized,
    Started,
    Stuck,
    Submitted,
    Training,
    decode,
    encode,
)
from melodeon.control.rounds import overheads_of
from melodeon.control.specs import length_of
from melodeon.control.state import STARTS, State, fold, fold_all
from melodeon.core.cluster import DeviceType
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.plan import Block
from melodeon.core.service import MOVES, OVER, Phase
from melodeon.core.spec import read_spec

CPU = DeviceType("cpu")
HOW: tuple[How, ...] = get_args(How)
SPEC: dict[str, Any] = {"name": "a", "run": ["train.py"], "steps": 10, "restarts": 1}


def submit(number: int, measure: bool) -> Submitted:
    spec, due = (SPEC | {"deadline": "1h"}, 3600.0) if measure else (SPEC, None)
    return Submitted(
        job=f"a-{number}", number=number, user="u", spec=spec, deadline_at=due, signature="s", measure=measure
    )


def plan(job: str, size: int) -> Planned:
    if not size:
        return Planned(job=job, counts=(), placement=(), slots={}, why="others go first")
    blocks = (Block(CPU, 0, size),)
    return Planned(job=job, counts=((CPU, size),), placement=blocks, slots={"n": tuple(range(size))}, why="free")


def possible(state: State, dice: Random) -> AnyFact:
    """A fact that a controller could say in this state."""
    names = sorted(state.live)
    if not names or dice.random() < 0.1:
        return submit(state.number + 1, dice.random() < 0.5)
    job = state.live[dice.choice(names)]
    name, number = job.id, job.incarnation
    choices: list[AnyFact] = [
        CancelAsked(job=name, user="u"),
        Late(job=name),
        Stuck(job=name, text=dice.choice(["", "odd"])),
        Sized(job=name, total_steps=20, steps_per_epoch=None),
        Overridden(job=name, user="u", workers=dice.choice([None, 2])),
        Edited(job=name, user="u", spec=SPEC | {"steps": 20}, deadline_at=None, changed=("steps",)),
        EditRefused(job=name, user="u", changed=("deadline",), why="no"),
        ProfileFailed(job=name, why="no"),
        CurveMeasured(job=name, signature="s", device_type="cpu", points={1: 2.0}, source="measured"),
        NodeSet(node="n", up=dice.random() < 0.5, drained=False, user="u"),
        PolicySet(policy="fifo", user="u"),
        Forgotten(before=dice.uniform(0.0, state.now)),
        Training(job=name, incarnation=number, step=1),
        Moved(job=name, incarnation=number, slots={"n": (0,)}, step=2),
        Paused(job=name, incarnation=number, pause_s=0.5),
        Ended(
            job=name,
            incarnation=number - dice.randint(0, 1),
            status=dice.choice(HOW),
            step=3,
        ),
    ]
    if not job.over and job.phase is not Phase.CANCELLING:
        if job.judged_at is not None or job.phase is Phase.PROFILING:
            choices += [plan(name, dice.randint(0, 4))] * 4
        if job.judged_at is None:
            choices.append(Judged(job=name, admitted=dice.random() < 0.5, why="so"))
        if job.slots and not job.alive and job.phase in (Phase.WAITING, Phase.PROFILING):
            choices += [Launched(job=name, incarnation=number + 1, slots=job.slots)] * 6
    return dice.choice(choices)


def log_of(seed: int, length: int) -> list[Entry]:
    """A log that a controller could have written."""
    state, dice = State(), Random(seed)
    entries = [Entry(1, 1.0, Started(version="1", policy="elasticflow", nodes=()))]
    fold_all(state, entries)
    for seq in range(2, length):
        fact = possible(state, dice)
        entries.append(Entry(seq, float(seq), fact))
        fold(state, float(seq), fact)
    return entries


LOGS = st.builds(log_of, st.integers(0, 2**32), st.integers(2, 80))


@given(LOGS)
def test_phases_move_by_the_table_and_ends_are_final(log: list[Entry]) -> None:
    state = State()
    for entry in log:
        before = {**state.past, **state.live}
        fold(state, entry.at, entry.fact)
        assert not state.past.keys() & state.live.keys()
        for name, job in {**state.past, **state.live}.items():
            old = before.get(name)
            if old is not None and old.phase is not job.phase:
                # A cancel of a job without devices goes through two phases at once.
                two = {after for via in MOVES[old.phase] for after in MOVES[via]}
                assert job.phase in MOVES[old.phase] | (two if isinstance(entry.fact, CancelAsked) else set())
            if old is not None and old.phase in OVER:
                assert job.phase is old.phase
            assert job.incarnation in (0, old.incarnation if old else 0, (old.incarnation if old else 0) + 1)
            if job.phase in OVER or job.phase is Phase.CANCELLING:
                assert not job.slots, "what is over holds nothing"
            if job.phase in (Phase.RUNNING, Phase.SUSPENDING, Phase.CANCELLING):
                assert job.alive
        assert all(job.alive or job.phase not in OVER for job in state.live.values())
        assert all(not job.alive and job.phase in OVER for job in state.past.values())


@given(LOGS, st.integers(0, 60))
def test_a_log_can_be_cut_anywhere_and_written_down(log: list[Entry], cut: int) -> None:
    whole = fold_all(State(), log)
    first = fold_all(State(), log[:cut])
    kept = msgspec.json.decode(msgspec.json.encode(first), type=State)
    assert fold_all(kept, log[cut:]) == whole
    assert all(decode(encode(entry.fact)) == entry.fact for entry in log)


@given(LOGS, st.integers(0, 60))
def test_a_draft_changes_nothing_of_what_it_was_made_from(log: list[Entry], cut: int) -> None:
    state = fold_all(State(), log[:cut])
    before = msgspec.json.encode(state)
    draft = fold_all(state.draft(), log[cut:])
    assert msgspec.json.encode(state) == before
    assert draft == fold_all(State(), log)


@pytest.mark.parametrize(
    ("steps", "reached", "phase"),
    [(400, 300, Phase.WAITING), (200, 300, Phase.DONE), (300, 300, Phase.DONE)],
    ids=["more is wanted", "more was done", "as much"],
)
def test_a_run_that_ends_before_it_heard_of_an_edit_goes_on_to_the_new_end(
    steps: int, reached: int, phase: Phase
) -> None:
    state = State()
    submitted = submit(1, measure=False)
    name, file = submitted.job, submitted.spec | {"steps": steps}
    for fact in (
        submitted,
        Judged(job=name, admitted=True, why="", policy="elasticflow"),
        plan(name, 1),
        Launched(job=name, incarnation=1, slots={"n": (0,)}),
        Training(job=name, incarnation=1),
        Edited(job=name, user="ada", spec=file, deadline_at=None, changed=("steps",), admitted=True),
        Ended(job=name, incarnation=1, status="done", exit_code=0, digest="d", step=reached),
    ):
        fold(state, 100.0, fact)
    assert (state.live | state.past)[name].phase is phase


def test_a_script_that_ends_earlier_than_its_file_allows_is_as_long_as_it_says() -> None:
    state = State()
    fold(state, 0.0, submit(1, measure=False))
    spec = read_spec(SPEC)
    assert length_of(state.live["a-1"], spec, Known()) == SPEC["steps"]
    fold(state, 1.0, Sized(job="a-1", total_steps=6, steps_per_epoch=3))
    assert length_of(state.live["a-1"], spec, Known()) == 6


def test_starts_are_remembered_as_long_as_they_took() -> None:
    state = State()
    for number in range(1, STARTS + 3):
        name = f"a-{number}"
        facts: list[AnyFact] = [
            submit(number, measure=False),
            plan(name, 1),
            Launched(job=name, incarnation=1, slots={"n": (0,)}),
        ]
        for fact in facts:
            fold(state, 100.0 * number, fact)
        for _ in range(2):  # said again it is no other start
            fold(state, 100.0 * number + number, Training(job=name, incarnation=1))
    assert state.starts == tuple(map(float, range(3, STARTS + 3)))


def test_a_start_is_expected_to_take_what_most_have_taken() -> None:
    expected = Overheads(start=Pause(base_s=4.0, large_s=6.0, connect_s=0.0), first_start=True)

    def start_s(*seen: float) -> float:
        return overheads_of(State(starts=seen), expected).pause_s("", 1, held=False)

    assert start_s(9.0, 9.0, 9.0, 9.0) == 4.0
    assert start_s(1.1, 1.2, 1.3, 1.4, 60.0) == 1.5
    assert start_s(7.0, 7.2, 7.1, 7.6, 7.6) == 8.0
    assert overheads_of(State(starts=(9.0,) * 9), Overheads()) == Overheads()
