import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core import receipt
from melodeon.core.definition import Definition
from melodeon.core.errors import UsageError
from melodeon.core.receipt import Receipt

DEFINITION = Definition({"seed": 0, "virtual_workers": 8, "order": "tree", "threads": 1})


def digest(number: int) -> str:
    return f"{number:064x}"


def make(steps: dict[int, str], definition: Definition = DEFINITION) -> list[str]:
    lines, chain = [receipt.header_line(definition)], receipt.chain_start(definition)
    for step, value in steps.items():
        entry = receipt.next_entry(chain, step, value)
        lines.append(entry.line())
        chain = entry.chain
    return lines


LINES = make({step: digest(step) for step in (0, 10, 20, 30)})


@given(st.dictionaries(st.integers(0, 2**40), st.integers(0, 2**256 - 1).map(digest), max_size=8))
def test_what_is_written_is_read(steps: dict[int, str]) -> None:
    rising = dict(sorted(steps.items()))
    read = receipt.parse(make(rising))
    assert read.digests() == rising
    assert read.definition == DEFINITION
    assert read.note is None


def test_going_on_from_a_parsed_receipt_keeps_the_chain() -> None:
    first = receipt.parse(LINES[:3])
    entry = receipt.next_entry(first.chain, 20, digest(20))
    assert [*LINES[:3], entry.line()] == LINES[:4]
    assert receipt.parse(LINES[:1]).chain == receipt.chain_start(DEFINITION)


def test_a_cut_last_line_is_tolerated_and_said_at_every_length() -> None:
    *whole, last = LINES
    for length in range(1, len(last) - 1):
        read = receipt.parse([*whole, last[:length]])
        assert read.digests() == receipt.parse(whole).digests()
        assert read.note is not None
        assert "line 5" in read.note
    assert receipt.parse([*whole, last[:-1]]).note is None


def edited(number: int, **fields: Any) -> list[str]:
    lines = list(LINES)
    lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), **fields}) + "\n"
    return lines


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "empty"),
        (["{"], "line 1 .* no JSON object"),
        (['{"other": 1}\n'], "line 1 .* no header"),
        (edited(1, melodeon_receipt=2), "line 1 .* format 2.*upgrade"),
        (edited(1, melodeon_receipt=True), "line 1 .* no header"),
        (edited(1, definition=[]), "line 1 .* no header"),
        (edited(1, definition={"seed": [1]}), "line 1 .* seed"),
        (edited(1, definition={"seed": 1}), "line 2 .* chain is broken"),
        (edited(3, digest=digest(11)), "line 3 .* chain is broken"),
        (edited(3, step=11), "line 3 .* chain is broken"),
        (edited(3, step=0), "line 3 .* step 0 after step 0"),
        (edited(3, step=True), "line 3 .* step True"),
        (edited(3, step=-1), "line 3 .* step -1"),
        (edited(3, digest="12"), "line 3 .* 64 hexadecimal"),
        (edited(3, chain="Z" * 64), "line 3 .* 64 hexadecimal"),
        (edited(3, chain=None), "line 3 .* 64 hexadecimal"),
        ([*LINES[:2], *LINES[3:]], "line 3 .* chain is broken"),
        ([*LINES[:2], "half a line\n", *LINES[3:]], "line 3 .* no JSON object"),
        ([*LINES[:2], "cut but ended\n"], "line 3 .* no JSON object"),
        ([*LINES[:2], "[" * 100_000 + "\n"], "line 3 .* nested too deep"),
        ([*LINES[:2], "[]\n"], "line 3 .* another type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_refused_by_line(lines: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        receipt.parse(lines)


@given(st.integers(1, 4), st.data())
def test_no_edit_of_a_digest_or_chain_passes(number: int, data: st.DataObject) -> None:
    lines = list(LINES)
    raw = json.loads(lines[number])
    field = data.draw(st.sampled_from(["digest", "chain"]))
    position = data.draw(st.integers(0, 63))
    old = raw[field][position]
    new = data.draw(st.sampled_from([c for c in "0123456789abcdef" if c != old]))
    raw[field] = raw[field][:position] + new + raw[field][position + 1 :]
    lines[number] = json.dumps(raw) + "\n"
    with pytest.raises(UsageError, match=f"line {number + 1} "):
        receipt.parse(lines)


def parsed(steps: dict[int, int], definition: Definition = DEFINITION) -> Receipt:
    return receipt.parse(make({step: digest(value) for step, value in steps.items()}, definition))


def test_compare_names_the_first_step_that_is_not_confirmed() -> None:
    expected = parsed({1: 1, 2: 2, 3: 3})
    assert receipt.compare(expected, expected) is None
    assert receipt.compare(expected, parsed({0: 0, 1: 1, 2: 2, 3: 3, 4: 4})) is None
    difference = receipt.compare(expected, parsed({1: 1, 2: 9, 3: 8}))
    assert difference is not None
    assert (difference.step, difference.expected, difference.actual) == (2, digest(2), digest(9))
    missing = receipt.compare(expected, parsed({1: 1, 2: 2}))
    assert missing is not None
    assert (missing.step, missing.actual) == (3, None)
    assert missing.sentence() == f"step 3: the receipt has digest {digest(3)[:12]}, the run recorded none"


def test_a_difference_of_definitions_is_given_as_the_reason() -> None:
    other = Definition({**DEFINITION.values, "threads": 2})
    assert receipt.compare(parsed({1: 1}), parsed({1: 1}, other)) is None
    difference = receipt.compare(parsed({1: 1}), parsed({1: 2}, other))
    assert difference is not None
    assert difference.sentence().endswith("(threads is 1 there and 2 here)")
