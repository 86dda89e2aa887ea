"""The history of a job's batch factor: `(step, factor)`, from which step on which factor holds; 1 before the first.

Together with what else defines a run it gives the same bits again, on any workers.
"""

import json
from collections.abc import Iterable

from melodeon.core.errors import UsageError

BatchHistory = tuple[tuple[int, int], ...]

LARGEST = 1 << 16


def factor_at(history: BatchHistory, step: int) -> int:
    """The factor of the step that comes after `step` committed ones."""
    return next((factor for at, factor in reversed(history) if at <= step), 1)


def check_factor(name: str, factor: object) -> int:
    """Refuse what is no batch factor."""
    if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= LARGEST:
        raise UsageError(f"{name}={factor!r} must be a whole number from 1 to {LARGEST}: so many times the first batch")
    return factor


def check_history(entries: Iterable[object]) -> BatchHistory:
    """`[(step, factor), ...]` with steps that grow, without entries that change nothing; or a sentence."""
    history: list[tuple[int, int]] = []
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise UsageError(f"{entry!r} in a batch history is not a pair of step and factor, like (100, 2)")
        step, factor = entry
        least = history[-1][0] + 1 if history else 0
        if isinstance(step, bool) or not isinstance(step, int) or step < least:
            raise UsageError(
                f"step {step!r} in a batch history must be a whole number of at least {least}: steps are counted from "
                "0 and grow"
            )
        if check_factor("factor", factor) != (history[-1][1] if history else 1):
            history.append((step, factor))
    return tuple(history)


def parse_history(text: str, where: str) -> BatchHistory:
    """Read `{"history": [{"step": 100, "factor": 2}, ...]}`, as a run leaves it in batches.json."""
    try:
        rows = json.loads(text)["history"]
        entries = [(row["step"], row["factor"]) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{where} holds no batch history: it looks like {{"history": [{{"step": 100, "factor": 2}}]}}'
        ) from error
    return check_history(entries)
