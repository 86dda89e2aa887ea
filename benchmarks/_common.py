"""What every benchmark shares: progress on stderr, one JSON object as the last line on stdout.

A benchmark that is held to a bound says so in that object; with `--check` it exits 1 where a bound is not met.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""For processes that a benchmark starts: this checkout first, then what it was given itself."""


def progress(text: str) -> None:
    """Say something to the person who waits."""
    print(text, file=sys.stderr, flush=True)


Bound = dict[str, object]
"""What a figure is held to, as `at_least` and `at_most` say it."""


def arguments(text: str | None) -> argparse.ArgumentParser:
    """A benchmark's options, described by its own docstring."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--check", action="store_true", help="exit 1 if a figure does not keep its bound")
    return made


def at_least(what: str, value: float, bound: float) -> Bound:
    """Hold a figure to a lower bound."""
    return {"what": what, "value": value, "at_least": bound, "met": value >= bound}


def at_most(what: str, value: float, bound: float) -> Bound:
    """Hold a figure to an upper bound."""
    return {"what": what, "value": value, "at_most": bound, "met": value <= bound}


def report(*, bounds: Sequence[Bound] = (), check: bool = False, **fields: object) -> None:
    """Print the result line; `benchmark`, `metric`, `value`, `peer`, `peer_value` and `ratio` come from the caller.

    With `check`, ends the process with 1 where a bound is not met.
    """
    missed = [bound for bound in bounds if not bound["met"]]
    held: dict[str, object] = {"bounds": list(bounds), "met": not missed} if bounds else {}
    print(json.dumps({**fields, **held, "machine": machine()}), flush=True)
    for bound in missed:
        progress(f"not met: {bound}")
    if check and missed:
        raise SystemExit(1)


def machine() -> dict[str, object]:
    """Where the figures come from."""
    import torch

    found: dict[str, object] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
