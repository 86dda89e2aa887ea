"""The last status of a worker that ends by itself, on the disk: for an agent that was away when it was said, or busy.

Without it a worker that trained to the end, or failed by its script's own error, while its agent was being started
again would count as lost; and an error whose worker's end is seen before its word is read would have no sentence.
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
    found = (_read(path) for path in (run_dir / "last-words").glob("*.json"))
    return {status.worker: status for status in found if status is not None}


def last_error(run_dir: Path, worker: int) -> str:
    """The sentence of a worker's script's own error, if it left one."""
    status = _read(run_dir / "last-words" / f"{worker}.json")
    return "" if status is None else status.error


def _read(path: Path) -> Status | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None
