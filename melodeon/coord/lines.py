"""What is said on one node besides the job's documents: events, the nursery's doings, and who is calling.

All of it runs over the same frames and, on a node, the same socket: the first frame of a connection says who it is (a
worker: `Status` or `Line`; the nursery: `Brood`; a person: `Ask` or `Watch`; another agent, over TCP: `Hello`).
"""

import msgspec

from melodeon.coord.messages import Answer, Ask, Notice, Orders, Report, Status


class Line(msgspec.Struct, frozen=True, kw_only=True, tag="line"):
    """One event of a worker, as the JSON text of one object; kept in `events.jsonl`."""

    worker: int
    text: str


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Asks an agent to send every event that it writes from now on, as `Line`s (worker -1: the master's own)."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first frame of an agent that calls the master's agent."""

    agent: str
    token: str


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Asks the nursery for a worker. Said twice for one worker, it has one effect."""

    worker: int
    argv: tuple[str, ...]
    """What follows `python` on a command line: `script.py ...` or `-m module ...`."""
    env: dict[str, str]
    """Added to the nursery's own environment."""
    out: str
    """The file that takes what it prints."""
    err: str
    """The file that takes what it prints to stderr."""
    mark: str
    """The file in which the new process notes who it is, before it does anything else."""


class Brood(msgspec.Struct, frozen=True, kw_only=True, tag="brood"):
    """What the nursery knows of the workers that it made, whole, each time something changes."""

    pid: int
    workers: dict[int, int] = {}
    """Worker -> process, for those that run."""
    ended: dict[int, int] = {}
    """Worker -> exit code, negative for a signal, for those that have ended."""


Spoken = Status | Notice | Orders | Report | Ask | Answer | Line | Watch | Hello | Start | Brood
