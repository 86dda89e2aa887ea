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
from typing import Any, NamedTuple

from torch import multiprocessing

Steps = Callable[..., Iterator[Any]]
"""Called in the process with (rank, size, folder, *args); yields after every step, or its last result when asked to
stop.
"""


KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 60), "MALLOC_MMAP_MAX_": "0"}
"""For all contenders: freed memory stays with the process. By default the luck of its heap decides whether
gradients are given back and faulted in again (15,000 to 40,000 page faults a step of ResNet-18 were seen, of either
contender), and that decides 5 % of a step.
"""


class Turn(NamedTuple):
    """One step of a contender."""

    seconds: float
    """Until the last process was done."""
    cpu_s: float
    """CPU seconds of all processes, which other work on the machine disturbs less."""
    said: Any
    """What process 0 yielded."""


class Contender:
    """`size` processes that each run `steps`, one step at a word."""

    def __init__(
        self, steps: Steps, args: Sequence[object], size: int = 1, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        os.environ.update(KEEP_MEMORY)  # read when a process starts
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

    def turn(self) -> "Turn":
        """One step on all processes."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("step")
        answers = [pipe.recv() for pipe in self._pipes]
        seconds = time.perf_counter() - start
        for answer in answers:
            if isinstance(answer, str):
                raise SystemExit(answer)
        return Turn(seconds, sum(cpu_s for _, cpu_s in answers), answers[0][0])

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send("stop")
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def compare(ours: Contender, peer: Contender, rounds: int, tell: Callable[[int, float, float], None]) -> dict[str, Any]:
    """Medians of interleaved steps, and the medians of the ratios (peer's over ours) of neighbours."""
    for _ in range(3):
        ours.turn(), peer.turn()
    pairs: list[tuple[Turn, Turn]] = []
    for number in range(rounds):
        if number % 2:
            mine, theirs = ours.turn(), peer.turn()
        else:
            theirs, mine = peer.turn(), ours.turn()
        pairs.append((mine, theirs))
        tell(number + 1, mine.seconds, theirs.seconds)
    ours.close(), peer.close()
    return {
        "ours_s": round(statistics.median(mine.seconds for mine, _ in pairs), 5),
        "peer_s": round(statistics.median(theirs.seconds for _, theirs in pairs), 5),
        "ratio": round(statistics.median(theirs.seconds / mine.seconds for mine, theirs in pairs), 4),
        "cpu_ratio": round(statistics.median(theirs.cpu_s / mine.cpu_s for mine, theirs in pairs), 4),
        "last": tuple(turn.said for turn in pairs[-1]),
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
            began = time.process_time()
            said = next(iterator)
            pipe.send((said, time.process_time() - began))
    except Exception:
        pipe.send(traceback.format_exc())
    os._exit(0)  # nothing here is worth an orderly end
