"""The same with real jobs: controllers of real launchers, agents and workers are killed under load, one after another.

    python -m tests.control.killpoints_real [--kills N] [--only NAME]

First jobs train undisturbed, for their digests; then a dry run counts how often a controller's life passes each named
point within some seconds of load. The kills are spread over them: every name the first time that it is passed, every
name the second time, and so on until there are enough. In one run of the jobs many controllers live, each of which is
killed at the next point of the list while its users submit, cancel, edit and scale (`killpoints_load`); the next one
follows at once, or, every fourth time, when one more job has ended while nobody served. Jobs train on all the while.

After every kill the log holds what was acknowledged. At the end of each run no job is lost, none ran twice at a time
(by the records in the folders of its incarnations), cancels, edits and scalings hold, no process is left, and every job
that was trained to its end has the digest of the undisturbed one (`killpoints_books`). A point that a life did not
reach in time is no kill, is counted as that, and is followed by another at the end.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from melodeon.control.points import POINTS
from melodeon.coord.failpoint import VARIABLE
from tests.backends.fleets import processes
from tests.control.killpoints_books import Books, Digests, read_digests
from tests.control.killpoints_jobs import Life

KILLS, KILLS_A_RUN = 200, 25
DRY_S, PROFILES_S = 10.0, 25.0
"""How long a life under load is in which the points are counted; measuring a job's speed takes longer than the rest."""
LIFE_S = 45.0
"""A life that has not passed its point by then does not any more."""
END_S = 300.0
"""How long the jobs may take to come to their end when nobody dies any more."""
NEVER = 10**9
ALONE_S = 3.0
"""How long a job may take to end while nobody serves."""

Point = tuple[str, int]
"""A name, and at which time that it is passed in a life."""


@dataclass
class Report:
    """What became of all of it."""

    killed: list[Point] = field(default_factory=list)
    missed: list[Point] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    acknowledged: int = 0

    def to_json(self, passed: Mapping[str, int], seconds: float) -> str:
        """As the last line says it."""
        by_name = Counter(name for name, _ in self.killed)
        return json.dumps(
            {
                "points": len(set(self.killed)),
                "kills": len(self.killed),
                "kills_by_name": {name: by_name[name] for name in POINTS},
                "passed_in_dry_run": {name: passed.get(name, 0) for name in POINTS},
                "not_reached": [f"{name}@{nth}" for name, nth in self.missed],
                "acknowledged": self.acknowledged,
                "wrong": len(self.wrong),
                "seconds": round(seconds),
            }
        )


def live(life: Life, armed: str, books: Books, limit_s: float) -> int | None:
    """One life of a controller; returns how it ended, None where it had to be ended from outside."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if armed:
        env[VARIABLE] = armed
    command = [sys.executable, "-m", "tests.control.killpoints_load"]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        late = False
        try:
            output, _ = child.communicate(msgspec.json.encode(life), timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            output, late = child.communicate()[0], True
        books.read(output)
        if child.returncode not in (0, -9):
            errors.seek(0)
            books.wrong.append(f"ended with {child.returncode}: {errors.read().decode()[-2000:]}")
        return None if late else child.returncode


def focus_of(name: str) -> str:
    """What a point is about."""
    return name.split(".")[1]


def undisturbed() -> Digests:
    """The digests of the jobs when nothing dies and nobody asks for anything."""
    books = Books()
    with tempfile.TemporaryDirectory() as name:
        live(Life(folder=name, reference=True), "", books, END_S)
        if not books.over or books.wrong:
            sys.exit(f"the undisturbed run failed: {books.wrong}")
        return read_digests(Path(name))


def dry_run(digests: Digests, names: list[str]) -> tuple[dict[str, int], list[str]]:
    """How often each point is passed in a life about it, and what was wrong without any kill."""
    found: dict[str, int] = {}
    books = Books()
    with tempfile.TemporaryDirectory() as folder:
        never = ",".join(f"{name}=kill@{NEVER}" for name in POINTS)
        for turn, focus in enumerate(dict.fromkeys(focus_of(name) for name in names)):
            seconds = PROFILES_S if focus == "profile" else DRY_S
            live(books.life(Path(folder), turn, focus, seconds=seconds), never, books, LIFE_S)
            found |= {name: max(count, found.get(name, 0)) for name, count in books.passed.items()}
        live(books.life(Path(folder), 0, "", last=True), "", books, END_S)
        books.check_end(Path(folder), digests)
    return found, books.wrong


def enumerated(passed: Mapping[str, int], kills: int) -> list[Point]:
    """Different points as long as there are any, and as many of each name, where it is passed so often."""
    found: list[Point] = []
    for nth in range(1, max(passed.values(), default=0) + 1):
        found += [(name, nth) for name in POINTS if nth <= passed.get(name, 0)]
    chosen = sorted(found[:kills], key=lambda point: POINTS.index(point[0]))
    return [chosen[index % len(chosen)] for index in range(kills)] if chosen else []


def dealt(points: list[Point]) -> list[list[Point]]:
    """The points of each run: of every name some, and each run goes round them from another one on.

    Snapshots come first: a log is summed up less often the more jobs it holds that are over.
    """
    runs = -(-len(points) // KILLS_A_RUN)
    hands = [points[index::runs] for index in range(runs)]
    turned = [[*hand[2 * index :], *hand[: 2 * index]] for index, hand in enumerate(hands)]
    return [sorted(hand, key=lambda point: "snapshot" not in point[0]) for hand in turned]


def hands_of(passed: Mapping[str, int], kills: int, report: Report) -> Iterator[list[Point]]:
    """The points of one run after the other; for those that were not reached, the next of the list, until it ends."""
    yield from dealt(enumerated(passed, kills))
    if len(report.killed) < kills and enumerated(passed, 1):
        tried = {*report.killed, *report.missed}
        others = [point for point in enumerated(passed, 2 * kills) if point not in tried]
        yield from dealt(others[: kills - len(report.killed)])


def run(label: str, points: list[Point], digests: Digests, report: Report) -> None:
    """One run of the jobs through many kills."""
    books, folder = Books(), Path(tempfile.mkdtemp(prefix="melodeon-kills-"))
    for turn, (name, nth) in enumerate(points):
        began = time.monotonic()
        life = books.life(folder, turn, focus_of(name))
        code = live(life, f"{name}=kill@{nth}", books, LIFE_S)
        took_s = time.monotonic() - began
        (report.killed if code == -9 else report.missed).append((name, nth))
        books.check_log(folder)
        what = "killed" if code == -9 else "not reached"
        told = f"{books.acknowledged} acknowledged, {len(books.pending)} open"
        print(f"{label}.{turn + 1} {name}@{nth}: {what} after {took_s:.1f} s, {told}", flush=True)
        if turn % 4 == 3:
            alone(folder)
    began = time.monotonic()
    live(books.life(folder, 0, "", last=True), "", books, END_S)
    if not books.over:
        books.wrong.append("it never came to an end")
    books.check_end(folder, digests)
    report.acknowledged += books.acknowledged
    report.wrong += books.wrong
    print(f"{label}: ended within {time.monotonic() - began:.1f} s; {'; '.join(books.wrong) or 'ok'}", flush=True)
    if books.wrong:
        print(f"{label}: its folder is {folder}", flush=True)
    else:
        shutil.rmtree(folder)


def alone(folder: Path) -> None:
    """Wait a moment for a job to end while nobody serves."""
    poll = select.poll()
    with contextlib.ExitStack() as opened:
        for pid, line in processes(folder).items():
            if "melodeon.backends.launcher" in line:
                with contextlib.suppress(ProcessLookupError):
                    fd = os.pidfd_open(pid)
                    opened.callback(os.close, fd)
                    poll.register(fd, select.POLLIN)
        poll.poll(ALONE_S * 1000)


def main() -> None:
    """Kill at every point of the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--only", default="", help="part of the names of the points")
    asked = parser.parse_args()
    began, report = time.monotonic(), Report()
    names = [name for name in POINTS if asked.only in name]
    digests = undisturbed()
    print(f"undisturbed: {len(digests)} digests after {time.monotonic() - began:.0f} s", flush=True)
    passed, report.wrong = dry_run(digests, names)
    passed = {name: count for name, count in passed.items() if name in names}
    print(f"dry run: {passed} after {time.monotonic() - began:.0f} s; {report.wrong or 'ok'}", flush=True)
    for index, hand in enumerate(hands_of(passed, asked.kills, report), start=1):
        run(f"run {index}", hand, digests, report)
    print(report.to_json(passed, time.monotonic() - began))
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
