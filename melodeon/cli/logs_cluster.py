"""What a job of the cluster has printed, in all of its starts; the service has made it harmless already."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from melodeon.cli.cluster import RESTART_S, connect
from melodeon.cli.output import print_json
from melodeon.core.errors import NotFound
from melodeon.core.text import plain

if TYPE_CHECKING:
    from melodeon.client import Cluster
    from melodeon.core.service import JobInfo

MARK = re.compile(r"\[worker (\d+)\] ")
"""How the service marks the lines of all workers."""
START = re.compile(r"--- start \d+ ---")
"""What it writes between two starts of the job."""


def show_logs(job: "JobInfo", worker: int | None, tail: int | None, *, follow: bool, as_json: bool) -> None:
    """Print it, and with `follow` go on until the job is over."""
    start, printed = "", False
    starts: list[str] = []  # held back until there is a line to part from others
    with connect(RESTART_S) as cluster:
        for mark, lines in _so_far(cluster, job.id, worker, tail):
            start, printed = mark, printed or not all(map(START.fullmatch, lines))
            starts += lines
            if printed or follow:
                _print(starts, worker, as_json=as_json)
                starts.clear()
        if follow:
            for text in cluster.follow_logs(job.id, start, worker=worker):
                _print(text.splitlines(), worker, as_json=as_json)
        elif not printed and tail != 0:
            raise NotFound(_nothing(cluster, job, worker))


def _nothing(cluster: "Cluster", job: "JobInfo", worker: int | None) -> str:
    """That there is no output, and why; `show` has led here where the job is over."""
    who = "any worker" if worker is None else f"worker {worker}"
    said = f"job {job.id} is {job.phase.value} and has no output of {who}"
    if worker is not None and (known := _workers(cluster, job.id)):
        return f"{said}: it has some of workers {', '.join(map(str, known))}"
    from melodeon.core.service import OVER

    if job.phase not in OVER:
        return f"{said}: see `melodeon show {job.id}`"
    return f"{said}: {plain(job.why)}" if job.why else said


def _workers(cluster: "Cluster", job: str) -> list[int]:
    """The workers that have printed something."""
    lines = (line for _, some in _so_far(cluster, job, None, None) for line in some)
    return sorted({int(match[1]) for match in map(MARK.match, lines) if match})


def _so_far(cluster: "Cluster", job: str, worker: int | None, tail: int | None) -> Iterator[tuple[str, list[str]]]:
    """What is there already, piece by piece, each with the mark to go on from; with `tail`, the end in one piece."""
    kept: list[str] = []
    chunk = cluster.logs(job, worker=worker)
    while chunk.text:
        if tail is None:
            yield chunk.next, chunk.text.splitlines()
        else:
            kept = _last([*kept, *chunk.text.splitlines()], tail)
        chunk = cluster.logs(job, chunk.next, worker=worker)
    yield chunk.next, kept


def _last(lines: list[str], tail: int) -> list[str]:
    """The last lines of each worker, in the order in which they came."""
    seen: Counter[str] = Counter()
    kept = []
    for line in reversed(lines):
        match = MARK.match(line)
        who = match[1] if match else "start" if START.fullmatch(line) else ""
        seen[who] += 1
        if seen[who] <= tail:
            kept.append(line)
    return kept[::-1]


def _print(lines: Iterable[str], worker: int | None, *, as_json: bool) -> None:
    for line in lines:
        if not as_json:
            print(line)
            continue
        match = MARK.match(line) if worker is None else None
        number = int(match[1]) if match else worker
        print_json({"worker": number, "line": line[match.end() :] if match else line})
    sys.stdout.flush()
