"""`melodeon diff`: the first operator in which two runs part, or the first step where operators were not recorded."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import typer

from melodeon.cli.job import RUNS_ROOT, RunsRoot, read_json
from melodeon.cli.options import Json
from melodeon.cli.output import print_json, print_titled
from melodeon.core import receipt, statediff
from melodeon.core.errors import NotBitwise, NotFound, UsageError
from melodeon.core.opdiff import OpDiff, OpRecord, first_difference, merge, read_records

INDENT = 10
"""Where the second column starts."""

Parsed = TypeVar("Parsed")


def diff(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's folder or id.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="Another's.")],
    runs_root: RunsRoot = RUNS_ROOT,
    json: Json = False,
) -> None:
    """Find the first operator whose inputs agree and outputs differ.

    Both runs need `melodeon run --record-ops`; without it, their states or receipts are compared step by step.
    Exit code 0: equal, 6: different.
    """
    a, b = find_run(run_a, runs_root), find_run(run_b, runs_root)
    if _op_files(a) and _op_files(b):
        equal = _diff_operators(a, b, as_json=json)
    elif _both_have("states.jsonl", a, b):
        equal = _diff_states(a, b, as_json=json)
    elif _both_have("receipt.jsonl", a, b):
        equal = _diff_receipts(a, b, as_json=json)
    else:
        bare = a if not _op_files(a) else b
        raise UsageError(
            f"run {bare} has no operator records, and the two runs no other record in common: "
            "run both again with `melodeon run --record-ops`"
        )
    if not equal:
        raise typer.Exit(NotBitwise.exit_code)


def find_run(name: str, runs_root: str) -> Path:
    """The folder of a run that is given by its path or its id."""
    for folder in (Path(name), Path(runs_root) / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"run {name!r} is neither a folder nor a run under {runs_root}: see `ls {runs_root}` for the ids")


def _op_files(run: Path) -> list[Path]:
    return sorted((run / "ops").glob("worker-*.jsonl"))


def _both_have(name: str, a: Path, b: Path) -> bool:
    return all((run / name).is_file() for run in (a, b))


def _diff_operators(a: Path, b: Path, *, as_json: bool) -> bool:
    with ExitStack() as stack:
        found = first_difference(_records(a, stack), _records(b, stack))
    if not found.compared and found.equal:
        raise UsageError(f"runs {a} and {b} recorded no operator: let them run at least one step with --record-ops")
    if as_json:
        _print_diff_json(found, a, b)
        return found.equal
    _say("runs", f"A {a}", f"B {b}")
    _say("differ", *_definitions(a, b))
    if found.equal:
        _say("equal", found.sentence())
        return True
    agreed = f"{found.compared:,} operators before it"
    _say("agree", agreed if found.compared else "nothing: it is the first operator")
    _say("first", found.sentence())
    _explain(found)
    _say("before", *(record.label() for record in found.neighbours))
    return False


def _records(run: Path, stack: ExitStack) -> Iterator[OpRecord]:
    return merge([read_records(stack.enter_context(_open(path)), str(path)) for path in _op_files(run)])


def _open(path: Path) -> TextIO:
    """What is no UTF-8 is damaged, and refused by its line."""
    return path.open(encoding="utf-8", errors="replace")


def _parsed(path: Path, parse: Callable[[TextIO], Parsed]) -> Parsed:
    """A file of a run; what is wrong with it is said of this one, since there are two."""
    with _open(path) as lines:
        try:
            return parse(lines)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


def _explain(found: OpDiff) -> None:
    """The values at the difference, of both runs, and how far apart they are."""
    if found.a is None or found.b is None or found.kind in ("sequence", "ends"):
        return
    sides = {"inputs": "input"}.get(found.kind, "output")
    for position in found.positions()[:3]:
        name = found.a.names.get(position, "") if sides == "input" else ""
        values = [(r.inputs if sides == "input" else r.outputs)[position : position + 1] for r in (found.a, found.b)]
        left, right = (value[0] if value else "absent" for value in values)
        _say(f"{sides} {position}", *([name] if name else []), f"A {left}", f"B {right}")
    if size := found.size():
        _say("size", size)


def _print_diff_json(found: OpDiff, a: Path, b: Path) -> None:
    print_json(
        {
            "equal": found.equal,
            "by": "operators",
            "kind": found.kind,
            "sentence": found.sentence(),
            "compared": found.compared,
            "runs": [str(a), str(b)],
            "definition": _definitions(a, b),
            "a": asdict(found.a) if found.a else None,
            "b": asdict(found.b) if found.b else None,
            "positions": list(found.positions()),
            "size": found.size() or None,
        }
    )


def _diff_states(a: Path, b: Path, *, as_json: bool) -> bool:
    states = {
        letter: _parsed(run / "states.jsonl", statediff.parse_states) for letter, run in zip("AB", (a, b), strict=True)
    }
    if not any(states.values()):
        raise UsageError(f"runs {a} and {b} recorded no state: let them run at least one step with --record-states")
    found = statediff.first_difference(states)
    steps = len(states["A"])
    sentence = found.sentence() if found else f"the whole state agrees after each of {steps:,} recorded steps"
    return _tell_steps("states", a, b, found.step if found else None, sentence, as_json=as_json)


def _diff_receipts(a: Path, b: Path, *, as_json: bool) -> bool:
    left, right = (_parsed(run / "receipt.jsonl", receipt.parse).digests() for run in (a, b))
    common = sorted(left.keys() & right.keys())
    if not common:
        raise UsageError(f"the receipts of {a} and {b} have no step in common: run both again with --record-ops")
    step = next((step for step in common if left[step] != right[step]), None)
    ends = max(left), max(right)
    if step is not None:
        sentence = f"the state after step {step} is the first of {len(common):,} in both receipts that differs"
    elif ends[0] != ends[1]:
        step = min(ends) + 1
        sentence = f"the receipts agree at {len(common):,} steps, but one ends at step {min(ends)}, one at {max(ends)}"
    else:
        sentence = f"the receipts agree at all {len(common):,} steps that both have"
    return _tell_steps("receipts", a, b, step, sentence, as_json=as_json)


def _tell_steps(by: str, a: Path, b: Path, step: int | None, sentence: str, *, as_json: bool) -> bool:
    equal = step is None
    further = [] if step is None else [_rerun(run, step) for run in (a, b)]
    if as_json:
        print_json(
            {
                "equal": equal,
                "by": by,
                "sentence": sentence,
                "step": step,
                "runs": [str(a), str(b)],
                "definition": _definitions(a, b),
                "next": further,
            }
        )
        return equal
    _say("runs", f"A {a}", f"B {b}")
    _say("differ", *_definitions(a, b))
    _say("equal" if equal else "first", sentence)
    if further:
        _say("next", "for the operator, record both again and compare those runs:", *further)
    return equal


def _rerun(run: Path, step: int) -> str:
    """The command that repeats a run up to `step` with operators recorded."""
    raw, bits = read_json(run / "run.json"), read_json(run / "definition.json")
    words = ["melodeon", "run", "--record-ops", "--no-resume", "--steps", str(step)]
    given = {"--assignment": raw.get("assignment"), "--determinism": raw.get("determinism")}
    given |= {"--threads": bits.get("threads"), "--order": bits.get("order")}
    words += [word for name, value in given.items() if value for word in (name, str(value))]
    args = raw.get("args")
    return shlex.join([*words, str(raw.get("script", "SCRIPT")), *(map(str, args) if isinstance(args, list) else ())])


def _definitions(a: Path, b: Path) -> list[str]:
    """What defines the bits and is not the same in both runs: the likely reason."""
    left, right = read_json(a / "definition.json"), read_json(b / "definition.json")
    if not left or not right:
        return []
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    return [f"{name} is {left.get(name)!r} in A and {right.get(name)!r} in B" for name in names]


def _say(title: str, *lines: str) -> None:
    print_titled(title, *lines, indent=INDENT)
