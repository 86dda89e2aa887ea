import pytest

from melodeon.core.errors import UsageError
from melodeon.core.statediff import RecordedState, StateDifference, first_difference, parse_states, state_line


def state(**leaves: str) -> RecordedState:
    return {"digest": "/".join(f"{path}={leaf}" for path, leaf in sorted(leaves.items())), "leaves": leaves}


REFERENCE = {step: state(w=f"w{step}", b=f"b{step}", m=f"m{step}") for step in range(5)}


def test_equal_runs_have_no_difference() -> None:
    assert first_difference({"1 worker": REFERENCE, "2 workers": dict(REFERENCE), "3 workers": dict(REFERENCE)}) is None


def test_the_earliest_step_of_any_run_and_its_leaves_are_named() -> None:
    late = {**REFERENCE, 4: state(w="?", b="b4", m="m4")}
    early = {**REFERENCE, 2: state(w="w2", b="?", m="?"), 3: state(w="?", b="?", m="?")}
    found = first_difference({"1 worker": REFERENCE, "2 workers": late, "3 workers": early})
    assert found is not None
    assert (found.step, found.reference, found.other, found.leaves) == (2, "1 worker", "3 workers", ("b", "m"))
    assert found.sentence() == "step 2: 3 workers differs from 1 worker in 2 of 3 leaves: b, m"


def test_leaves_only_one_run_has_count() -> None:
    found = first_difference({"a": REFERENCE, "b": {**REFERENCE, 0: state(w="w0", b="b0", ema="e")}})
    assert found is not None
    assert (found.leaves, found.num_leaves) == (("m", "ema"), 4)


def test_long_lists_are_cut_in_the_sentence_only() -> None:
    many = {0: state(**{f"leaf{n}": "x" for n in range(10)})}
    other = {0: state(**{f"leaf{n}": "y" for n in range(10)})}
    found = first_difference({"a": many, "b": other})
    assert found is not None
    assert len(found.leaves) == 10
    assert found.sentence().endswith("in 10 of 10 leaves: leaf0, leaf1, leaf2, ...")


@pytest.mark.parametrize(("short", "missing"), [("a", "a"), ("b", "b")])
def test_a_step_that_one_run_lacks_is_a_difference(short: str, missing: str) -> None:
    cut = {step: REFERENCE[step] for step in range(3)}
    runs = {"a": cut, "b": REFERENCE} if short == "a" else {"a": REFERENCE, "b": cut}
    found = first_difference(runs)
    assert found is not None
    assert (found.step, found.missing_in) == (3, missing)
    there = "b" if short == "a" else "a"
    assert found.sentence() == f"step 3: {there} recorded a state and {missing} did not"


def test_a_run_whose_own_workers_part_says_it_in_its_words() -> None:
    found = StateDifference(2, "a", "b", (), 0, within="after step 2 worker 1 has another state")
    assert found.sentence() == "b differs within itself: after step 2 worker 1 has another state"


def test_a_digest_that_its_leaves_do_not_explain_is_said() -> None:
    odd: RecordedState = {"digest": "other", "leaves": REFERENCE[0]["leaves"]}
    found = first_difference({"a": REFERENCE, "b": {**REFERENCE, 0: odd}})
    assert found is not None
    assert "one of the records is damaged" in found.sentence()


def test_one_run_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        first_difference({"a": REFERENCE})


def test_records_go_round_and_a_cut_last_line_is_dropped() -> None:
    lines = [state_line(step, found["digest"], found["leaves"]) for step, found in REFERENCE.items()]
    assert parse_states(lines) == REFERENCE
    assert list(parse_states([*lines[:-1], lines[-1][:20]])) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match=r"line 2 .* not JSON"):
        parse_states([lines[0], "{\n", lines[1]])
    with pytest.raises(UsageError, match=r"line 1 .* lacks"):
        parse_states(['{"step": true, "digest": "", "leaves": {}}\n'])
    with pytest.raises(UsageError, match=r"line 1 .* lacks"):
        parse_states(['{"step": 1, "digest": "", "leaves": {"a": 1}}\n'])
