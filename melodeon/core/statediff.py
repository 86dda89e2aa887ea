"""Where recorded states of several runs first part: the step, the run and the leaves by name.

Works on the parsed `states.jsonl` of each run. The first run given is the reference; every other must have the same
steps with the same digests.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from melodeon.core.errors import UsageError

SHOWN = 3
"""How many leaf paths a sentence names."""


class RecordedState(TypedDict):
    """One line of `states.jsonl` less its step: the root digest and each leaf's."""

    digest: str
    leaves: dict[str, str]


@dataclass(frozen=True, slots=True)
class StateDifference:
    """The first step at which a run leaves the reference."""

    step: int
    reference: str
    other: str
    leaves: tuple[str, ...]
    """Every leaf that differs or that only one of the two has, in the reference's order."""
    num_leaves: int
    """How many leaves the two states have between them."""
    missing_in: str | None = None
    """The run that did not record this step; None where both did."""
    within: str | None = None
    """Where the other run's own workers part at this step: what it said when it stopped."""

    def sentence(self) -> str:
        """The difference for a person."""
        if self.within is not None:
            return f"{self.other} differs within itself: {self.within}"
        if self.missing_in is not None:
            there = self.other if self.missing_in == self.reference else self.reference
            return f"step {self.step}: {there} recorded a state and {self.missing_in} did not"
        what = f"step {self.step}: {self.other} differs from {self.reference}"
        if not self.leaves:
            return f"{what} by its digest, though every leaf agrees: one of the records is damaged"
        names = ", ".join(self.leaves[:SHOWN]) + (", ..." if len(self.leaves) > SHOWN else "")
        return f"{what} in {len(self.leaves)} of {self.num_leaves} leaves: {names}"


def first_difference(states: Mapping[str, Mapping[int, RecordedState]]) -> StateDifference | None:
    """The earliest difference of any run from the first one (by name, in the order given), or None."""
    names = list(states)
    if len(names) < 2:
        raise UsageError(f"{len(names)} recorded runs cannot be compared: give at least 2")
    reference, others = names[0], names[1:]
    for step in sorted(set().union(*states.values())):
        for other in others:
            left, right = states[reference].get(step), states[other].get(step)
            if left is None and right is None:
                continue
            if left is None or right is None:
                missing = reference if left is None else other
                return StateDifference(step, reference, other, (), 0, missing)
            if left["digest"] != right["digest"] or left["leaves"] != right["leaves"]:
                every = dict.fromkeys([*left["leaves"], *right["leaves"]])
                apart = tuple(path for path in every if left["leaves"].get(path) != right["leaves"].get(path))
                return StateDifference(step, reference, other, apart, len(every))
    return None


def parse_states(lines: Iterable[str]) -> dict[int, RecordedState]:
    """Read `states.jsonl`; a cut-off last line, as a killed run leaves it, is not counted."""
    texts = list(lines)
    states: dict[int, RecordedState] = {}
    for number, text in enumerate(texts, start=1):
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == len(texts) and not text.endswith("\n"):
                break
            sentence = f"line {number} of the recorded states is not JSON ({error}): record the run again"
            raise UsageError(sentence) from error
        if not _is_state(raw):
            raise UsageError(f"line {number} of the recorded states lacks step, digest or leaves: record the run again")
        states[raw["step"]] = {"digest": raw["digest"], "leaves": raw["leaves"]}
    return states


def state_line(step: int, digest: str, leaves: Mapping[str, str]) -> str:
    """One recorded state as a line of `states.jsonl`, with its newline."""
    return json.dumps({"step": step, "digest": digest, "leaves": dict(leaves)}) + "\n"


def _is_state(raw: object) -> bool:
    if not isinstance(raw, dict) or type(raw.get("step")) is not int or not isinstance(raw.get("digest"), str):
        return False
    leaves = raw.get("leaves")
    return isinstance(leaves, dict) and all(isinstance(leaf, str) for leaf in leaves.values())
