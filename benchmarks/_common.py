"""What every benchmark shares: progress on stderr, one JSON object as the last line on stdout."""

import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""For processes that a benchmark starts: this checkout first, then what it was given itself."""


def progress(text: str) -> None:
    """Say something to the person who waits."""
    print(text, file=sys.stderr, flush=True)


def report(**fields: object) -> None:
    """Print the result line; `benchmark`, `metric`, `value`, `peer`, `peer_value` and `ratio` come from the caller."""
    print(json.dumps({**fields, "machine": machine()}), flush=True)


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
