"""The first operator in which two recorded runs part, found by merging their records in one order.

The order is (step, virtual rank, index), with each step's commit after its virtual workers; it does not depend on which
worker ran what, so runs on different assignments can be compared. Everything is streamed: lines in, one pass, a handful
of records in memory. The first difference is the answer: what comes after may only follow from it.
"""

import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from melodeon.core.errors import UsageError

COMMIT_RANK = -1
"""The rank under which a step's commit is recorded; every worker runs the same one."""
NEIGHBOURS = 3
"""Agreeing records kept from just before the difference."""

Key = tuple[int, int, int, int]
Kind = Literal["equal", "operator", "random", "inputs", "sequence", "ends", "workers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One operator call: where it stands in the run, where it comes from, what it read and what it wrote."""

    step: int
    rank: int
    index: int
    op: str
    phase: str = ""
    module: str = ""
    site: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sample: tuple[tuple[float, ...] | None, ...] = ()
    """A few values of each floating output."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Which inputs are a known parameter, gradient or buffer."""
    random: bool = False
    """Whether it draws from a random stream."""
    other: "OpRecord | None" = None
    """What another worker of the same run recorded at this place, where that differs."""

    @property
    def key(self) -> Key:
        """Its place in the order of all records."""
        return (self.step, self.rank == COMMIT_RANK, self.rank, self.index)

    @property
    def content(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """What must be equal in two runs; the call site may move."""
        return (self.op, self.inputs, self.outputs)

    def place(self) -> str:
        """Step and virtual worker, in words."""
        who = "commit" if self.rank == COMMIT_RANK else f"virtual worker {self.rank}"
        return f"step {self.step}, {who}"

    def label(self) -> str:
        """The operator with its module and call site, in words."""
        words = [self.op]
        if self.phase == "backward":
            words.append("(backward)")
        if self.module:
            words.append(f"in {self.module}")
        elif self.names:
            words.append(f"on {next(iter(self.names.values()))}")
        if self.site:
            words.append(f"at {self.site}")
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDiff:
    """Where two runs part, or that they don't."""

    kind: Kind
    compared: int
    """Records that agreed before."""
    a: OpRecord | None = None
    """The record at the difference in the first run; None where that run has none there."""
    b: OpRecord | None = None
    first_step: int | None = None
    """The step that the comparison began with."""
    neighbours: tuple[OpRecord, ...] = ()
    """The last records that agreed, of the same virtual worker and step."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.kind == "equal"

    def positions(self) -> tuple[int, ...]:
        """Which inputs (kind `inputs`) or else outputs differ, by position."""
        if self.a is None or self.b is None:
            return ()
        left, right = (self.a.inputs, self.b.inputs) if self.kind == "inputs" else (self.a.outputs, self.b.outputs)
        longest = max(len(left), len(right))
        return tuple(i for i in range(longest) if left[i : i + 1] != right[i : i + 1])

    def sentence(self) -> str:
        """One sentence for a person: what differs first, and where."""
        return _SENTENCES[self.kind](self)

    def size(self) -> str:
        """How big the difference is as far as the sampled values tell, or empty."""
        if self.a is None or self.b is None or self.kind not in ("operator", "random", "inputs", "workers"):
            return ""
        pairs = [
            (x, y)
            for left, right in zip(self.a.sample, self.b.sample, strict=False)
            if left is not None and right is not None
            for x, y in zip(left, right, strict=False)
        ]
        changed = [(x, y) for x, y in pairs if x != y and not (x != x and y != y)]
        if not pairs:
            return ""
        if not changed:
            return f"none of {len(pairs)} sampled output values differs; the difference is in others"
        largest = max(abs(x - y) for x, y in changed)
        relative = max(abs(x - y) / max(abs(x), abs(y)) for x, y in changed)
        many = f"{len(changed)} of {len(pairs)} sampled output values differ"
        return f"{many}, by up to {largest:.3g} ({relative:.2g} of the value)"


def read_records(lines: Iterable[str], name: str) -> Iterator[OpRecord]:
    """Parse one worker's file; a last line that a killed run left unfinished is passed over."""
    previous: Key | None = None
    for number, line in enumerate(lines, 1):
        try:
            record = _record(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if not line.endswith("\n"):
                return
            raise UsageError(f"{name} line {number} is no operator record ({error}): record the run again") from error
        if previous is not None and record.key <= previous:
            raise UsageError(f"{name} line {number} ({record.place()}) is out of order: record the run again in one go")
        previous = record.key
        yield record


def merge(files: Sequence[Iterable[OpRecord]]) -> Iterator[OpRecord]:
    """One run's records in order, from any number of workers' files.

    The same place recorded by several workers (each runs the commit) is given once; if they disagree, with `other` set.
    """
    held: OpRecord | None = None
    for record in heapq.merge(*files, key=lambda record: record.key):
        if held is not None and record.key == held.key:
            if record.content != held.content and held.other is None:
                held = replace(held, other=record)
            continue
        if held is not None:
            yield held
        held = record
    if held is not None:
        yield held


def first_difference(run_a: Iterable[OpRecord], run_b: Iterable[OpRecord]) -> OpDiff:
    """Compare two merged runs, record by record, up to the first difference."""
    compared = 0
    first_step: int | None = None
    before: deque[OpRecord] = deque(maxlen=NEIGHBOURS)
    ends: Iterator[None] = iter(lambda: None, 0)
    left, right = chain(run_a, ends), chain(run_b, ends)
    for a, b in zip(left, right, strict=False):
        here = a or b
        if here is None:
            break
        first_step = here.step if first_step is None else first_step
        if kind := _compare(a, b):
            a, b = _pair(kind, a, b)
            here = a or b
            near = tuple(record for record in before if here and record.key[:3] == here.key[:3])
            return OpDiff(kind=kind, compared=compared, a=a, b=b, first_step=first_step, neighbours=near)
        assert a is not None
        before.append(a)
        compared += 1
    return OpDiff(kind="equal", compared=compared, first_step=first_step)


def _pair(kind: Kind, a: OpRecord | None, b: OpRecord | None) -> tuple[OpRecord | None, OpRecord | None]:
    """The two records to show for a difference."""
    if kind == "workers":
        torn = a if a and a.other else b
        return torn, torn.other if torn else None
    if kind == "sequence" and a and b and a.key != b.key:
        # The run that is behind has a record at a place where the other has none.
        return (a, None) if a.key < b.key else (None, b)
    return a, b


def _compare(a: OpRecord | None, b: OpRecord | None) -> Kind | None:
    if (a and a.other) or (b and b.other):
        return "workers"
    if a is None or b is None:
        return "ends"
    if a.key != b.key or a.op != b.op:
        return "sequence"
    if a.inputs != b.inputs:
        return "inputs"
    if a.outputs != b.outputs:
        return "random" if a.random else "operator"
    return None


def _operator(diff: OpDiff) -> str:
    assert diff.a
    return f"{diff.a.place()}: {diff.a.label()} reads the same and gives different results"


def _random(diff: OpDiff) -> str:
    assert diff.a
    return f"{diff.a.place()}: the random stream differs: {diff.a.label()} reads the same and draws different numbers"


def _inputs(diff: OpDiff) -> str:
    assert diff.a
    where = f"{diff.a.place()}: {diff.a.label()}"
    return f"{where} is the first to differ, and its inputs already do: {_origin(diff)}"


def _origin(diff: OpDiff) -> str:
    """What differing inputs can come from, when no recorded operator before differs."""
    record, positions = diff.a, diff.positions()
    assert record
    name = next((record.names[i] for i in positions if i in record.names), None)
    plain = [i for i in positions if i < len(record.inputs) and "#" not in record.inputs[i]]
    if name and name.endswith(".grad"):
        return f"the gradient {name} after the exchange of step {record.step}"
    if name:
        started = record.step == diff.first_step
        earlier = "the start of the run" if started else f"the exchange and commit of step {record.step - 1}"
        return f"{name} as left by {earlier}"
    if plain and plain == list(positions):
        assert diff.b
        ours, theirs = record.inputs[plain[0]], (*diff.b.inputs, *[""] * (plain[0] + 1))[plain[0]]
        return f"the argument {ours} of the call, {theirs or 'absent'} in the other run"
    if record.rank == COMMIT_RANK:
        return f"the gradients after the exchange of step {record.step}, or state kept since an earlier step"
    return "the batch, or a tensor made outside the recorded part"


def _sequence(diff: OpDiff) -> str:
    if diff.a and diff.b:
        return (
            f"{diff.a.place()}: other operators run: {diff.a.label()} in the first run, {diff.b.label()} in the second"
        )
    record = diff.a or diff.b
    assert record
    which = "first" if diff.a else "second"
    return f"{record.place()}: other operators run: only the {which} run has {record.label()}"


def _ends(diff: OpDiff) -> str:
    record = diff.a or diff.b
    assert record
    shorter, longer = ("second", "first") if diff.a else ("first", "second")
    where = f"{record.place()}: the {shorter} run ends before {record.label()}"
    return f"{where}, where the {longer} goes on; all before agrees"


def _workers(diff: OpDiff) -> str:
    assert diff.a
    return f"{diff.a.place()}: the workers of one run disagree among themselves at {diff.a.label()}"


def _equal(diff: OpDiff) -> str:
    return f"all {diff.compared:,} operators agree, inputs and outputs"


_SENTENCES = {
    "equal": _equal,
    "operator": _operator,
    "random": _random,
    "inputs": _inputs,
    "sequence": _sequence,
    "ends": _ends,
    "workers": _workers,
}


def _record(raw: Mapping[str, Any]) -> OpRecord:
    return OpRecord(
        step=int(raw["step"]),
        rank=int(raw["rank"]),
        index=int(raw["index"]),
        op=str(raw["op"]),
        phase=str(raw.get("phase", "")),
        module=str(raw.get("module", "")),
        site=str(raw.get("site", "")),
        inputs=tuple(raw["inputs"]),
        outputs=tuple(raw["outputs"]),
        sample=tuple(
            None if values is None else tuple(float(value) for value in values) for values in raw.get("sample", ())
        ),
        names={int(position): str(name) for position, name in raw.get("names", {}).items()},
        random=bool(raw.get("random", False)),
    )
