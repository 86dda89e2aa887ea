"""Contenders that take turns: each is one or more processes, and only one contender works at a time.

Processes of their own keep one contender's memory, threads and settings away from the other's; turns in one run keep
the machine's moods from deciding.
"""

import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch import multiprocessing

Steps = Callable[..., Iterator[Any]]
"""Called in the process with (rank, size, folder, *args); yields after every step, or its last result when asked to
stop.
"""


class Contender:
    """`size` processes that each run `steps`, one step at a word."""

    def __init__(
        self, steps: Steps, args: Sequence[object], size: int = 1, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(there, steps, rank, size, self._folder.name, tuple(args), dict(env or {})),
                daemon=True,
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def turn(self) -> tuple[float, Any]:
        """One step on all processes: the seconds until the last is done, and what process 0 yielded."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("step")
        answers = [pipe.recv() for pipe in self._pipes]
        seconds = time.perf_counter() - start
        for answer in answers:
            if isinstance(answer, str):
                raise SystemExit(answer)
        return seconds, answers[0][0]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send("stop")
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def compare(ours: Contender, peer: Contender, rounds: int, tell: Callable[[int, float, float], None]) -> dict[str, Any]:
    """Medians of interleaved steps, and the median of the ratios (peer's time over ours) of neighbours."""
    for _ in range(3):
        ours.turn(), peer.turn()
    pairs = []
    last: tuple[Any, Any] = (None, None)
    for number in range(rounds):
        if number % 2:
            (mine, a), (theirs, b) = ours.turn(), peer.turn()
        else:
            (theirs, b), (mine, a) = peer.turn(), ours.turn()
        last = (a, b)
        pairs.append((mine, theirs))
        tell(number + 1, mine, theirs)
    ours.close(), peer.close()
    return {
        "ours_s": round(statistics.median(mine for mine, _ in pairs), 5),
        "peer_s": round(statistics.median(theirs for _, theirs in pairs), 5),
        "ratio": round(statistics.median(theirs / mine for mine, theirs in pairs), 4),
        "last": last,
    }


def _serve(
    pipe: Connection, steps: Steps, rank: int, size: int, folder: str, args: tuple[object, ...], env: dict[str, str]
) -> None:
    os.environ.update(env)
    os.chdir(folder)
    sys.stdout = sys.stderr
    try:
        iterator = steps(rank, size, str(Path(folder) / "meet"), *args)
        while pipe.recv() == "step":
            pipe.send((next(iterator),))
    except Exception:
        pipe.send(traceback.format_exc())
    os._exit(0)  # nothing here is worth an orderly end
