"""What a worker said last, for an end that nobody has explained: a script that dies before it has joined sends no
error, and "ended with exit code 1" alone says nothing about the cause.
"""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

from melodeon.backends.outcome import Outcome
from melodeon.core.text import harmless

LOOKED_AT = 1 << 12
"""Bytes from the end of a worker's stderr."""
LONGEST = 300
"""Characters of a line that are told."""
_BARE = re.compile(r"worker \d+ ended with exit code \d+")


def explained(outcome: Outcome, run_dir: Path) -> Outcome:
    """The outcome, with the last line of the failed worker's stderr where nothing else tells why it failed."""
    if not outcome.reason or not _BARE.fullmatch(outcome.reason):
        return outcome
    said = said_last(run_dir, outcome.worker)
    return replace(outcome, reason=f"{outcome.reason}: {said}") if said else outcome


def said_last(run_dir: Path, worker: int | None) -> str:
    """The last line of a worker's stderr, with nothing in it that a terminal would obey; empty: it said nothing."""
    try:
        # The folder is the job's: a pipe there must not hold us.
        fd = os.open(run_dir / f"worker-{worker}.err", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return ""
        file.seek(max(0, found.st_size - LOOKED_AT))
        lines = re.split(r"[\r\n]", file.read().decode(errors="replace"))
    told = (harmless(line).strip() for line in reversed(lines))
    return next((line[:LONGEST] for line in told if line), "")
