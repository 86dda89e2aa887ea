"""The last status of a worker that ends by itself, on the disk: for an agent that was away when it was said.

Without it a worker that trained to the end, or failed by its script's own error, while its agent was being started
again would count as lost.
"""

import os
from pathlib import Path

import msgspec

from melodeon.coord.messages import Status


def write_last_words(run_dir: Path, status: Status) -> None:
    """Leave a worker's last status; a reader sees it whole or not at all."""
    folder = run_dir / "last-words"
    folder.mkdir(exist_ok=True)
    temporary = folder / f".{status.worker}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(status))
    temporary.replace(folder / f"{status.worker}.json")


def read_last_words(run_dir: Path) -> dict[int, Status]:
    """What was left, by worker; what cannot be read counts as not there."""
    found: dict[int, Status] = {}
    for path in (run_dir / "last-words").glob("*.json"):
        try:
            status = msgspec.json.decode(path.read_bytes(), type=Status)
        except (OSError, msgspec.MsgspecError):
            continue
        found[status.worker] = status
    return found
