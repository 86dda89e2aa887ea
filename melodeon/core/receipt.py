"""A receipt: the chain of state digests of a run, checkable by anyone who re-runs it.

One JSON object a line. The first names the format and the definition of the bits, each later one a step, the digest of
the whole state after it, and a chain value that hashes the previous one in: cutting, reordering or editing an earlier
line breaks every later one. A receipt is no signature; whoever can write the file can write a new chain.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from melodeon.core.definition import Definition
from melodeon.core.errors import UsageError

VERSION = 1

_HEX_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ReceiptEntry:
    """The digest of the whole state after `step` steps, chained to the entries before it."""

    step: int
    digest: str
    chain: str

    def line(self) -> str:
        """The entry as a line of the file, with its newline."""
        return json.dumps({"step": self.step, "digest": self.digest, "chain": self.chain}) + "\n"


@dataclass(frozen=True, slots=True)
class Receipt:
    """A definition and the entries recorded under it, by rising step."""

    definition: Definition
    entries: tuple[ReceiptEntry, ...] = ()
    note: str | None = None
    """A sentence about a cut-off last line, which a killed run leaves; None where the file is whole."""

    @property
    def chain(self) -> str:
        """The value that the next entry is chained to."""
        return self.entries[-1].chain if self.entries else chain_start(self.definition)

    def digests(self) -> dict[int, str]:
        """The state digest by step."""
        return {entry.step: entry.digest for entry in self.entries}


@dataclass(frozen=True, slots=True)
class ReceiptDifference:
    """The first step at which a run does not give what the receipt says."""

    step: int
    expected: str
    actual: str | None
    """None: the run has no entry for this step."""
    definition: tuple[str, ...] = ()
    """What the two definitions disagree about, as phrases; the likely reason."""

    def sentence(self) -> str:
        """The difference for a person."""
        if self.actual is None:
            text = f"step {self.step}: the receipt has digest {self.expected[:12]}, the run recorded none"
        else:
            text = f"step {self.step}: the receipt has digest {self.expected[:12]}, the run {self.actual[:12]}"
        return f"{text} ({'; '.join(self.definition)})" if self.definition else text


def chain_start(definition: Definition) -> str:
    """The chain value before the first entry: it binds the entries to what defines their bits."""
    return hashlib.sha256(json.dumps(dict(definition.values), sort_keys=True).encode()).hexdigest()


def chain_next(previous_chain: str, step: int, digest: str) -> str:
    """The chain value of an entry that follows `previous_chain`."""
    return hashlib.sha256(f"{previous_chain} {step} {digest}".encode()).hexdigest()


def next_entry(previous_chain: str, step: int, digest: str) -> ReceiptEntry:
    """The entry that records `digest` after `step` steps."""
    return ReceiptEntry(step, digest, chain_next(previous_chain, step, digest))


def header_line(definition: Definition) -> str:
    """The first line of a receipt, with its newline."""
    return json.dumps({"melodeon_receipt": VERSION, "definition": dict(definition.values)}) + "\n"


def parse(lines: Iterable[str]) -> Receipt:
    """Read a receipt and check its chain; only a last line without an end may be damaged."""
    texts = list(lines)
    if not texts:
        raise UsageError("the receipt is empty: line 1 must be its header; give the receipt.jsonl of a run")
    definition = _parse_header(texts[0])
    chain = chain_start(definition)
    entries: list[ReceiptEntry] = []
    for number, text in enumerate(texts[1:], start=2):
        try:
            raw = _parse_object(text)
        except ValueError as error:
            if number == len(texts) and not text.endswith("\n"):
                note = f"line {number} of the receipt is cut off, as a killed run leaves it: it is not counted"
                return Receipt(definition, tuple(entries), note)
            raise _refused(number, f"is no JSON object: {error}") from error
        entry = _parse_entry(number, raw)
        if entries and entry.step <= entries[-1].step:
            raise _refused(number, f"has step {entry.step} after step {entries[-1].step}: steps must rise")
        if entry.chain != chain_next(chain, entry.step, entry.digest):
            raise _refused(number, f"(step {entry.step}) does not follow from the lines before it: the chain is broken")
        chain = entry.chain
        entries.append(entry)
    return Receipt(definition, tuple(entries))


def compare(expected: Receipt, actual: Receipt) -> ReceiptDifference | None:
    """The first step of `expected` that `actual` does not confirm, or None; steps only `actual` has don't count."""
    found = actual.digests()
    for entry in expected.entries:
        if found.get(entry.step) != entry.digest:
            reasons = tuple(expected.definition.differences(actual.definition))
            return ReceiptDifference(entry.step, entry.digest, found.get(entry.step), reasons)
    return None


def _parse_header(text: str) -> Definition:
    try:
        raw = _parse_object(text)
    except ValueError as error:
        raise _refused(1, f"is no JSON object: {error}") from error
    version, values = raw.get("melodeon_receipt"), raw.get("definition")
    if type(version) is int and version > VERSION:
        raise UsageError(f"line 1 of the receipt has format {version}, this Melodeon reads up to {VERSION}: upgrade it")
    if type(version) is not int or version != VERSION or not isinstance(values, dict):
        raise _refused(1, 'is no header such as {"melodeon_receipt": 1, "definition": {...}}')
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int | float | bool):
            raise _refused(1, f"defines {name} as {value!r}, which is not a plain value")
    return Definition(values)


def _parse_entry(number: int, raw: dict[str, object]) -> ReceiptEntry:
    step, digest, chain = raw.get("step"), raw.get("digest"), raw.get("chain")
    if type(step) is not int or step < 0:
        raise _refused(number, f"has step {step!r}, which is not a whole number of at least 0")
    if not _is_hash(digest) or not _is_hash(chain):
        raise _refused(number, 'needs "digest" and "chain" of 64 hexadecimal digits')
    return ReceiptEntry(step, str(digest), str(chain))


def _parse_object(text: str) -> dict[str, object]:
    try:
        raw = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(raw, dict):
        raise ValueError("it is of another type")
    return raw


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and _HEX_DIGITS.issuperset(value)


def _refused(number: int, what: str) -> UsageError:
    return UsageError(f"line {number} of the receipt {what}; it was edited or damaged: take it from the run again")
