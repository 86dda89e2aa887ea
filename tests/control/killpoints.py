"""Kill the controller at every named point, start it again, and see that nothing is lost, doubled or false.

    python -m tests.control.killpoints [--points N] [--only NAME]

A child process serves a cluster (real store, fake fleet on the real clock, which goes on while nobody serves) and is
also its user: it submits and cancels, and says on its output what was acknowledged. It is killed (SIGKILL) when it
passes a point for the n-th time; another child goes on with whatever was not acknowledged, under the same request ids.
At the end: every acknowledged job is there once, every acknowledged cancel holds, no job ran twice at a time, and every
job came to its end with as many steps as it has.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from melodeon.backends.fleet_fake import FakeFleet, Played
from melodeon.control.controller import Controller
from melodeon.control.job import Job
from melodeon.control.points import POINTS
from melodeon.control.store import Store
from melodeon.coord.failpoint import VARIABLE
from melodeon.core.cluster import Cluster
from melodeon.core.overhead import Overheads
from melodeon.core.service import OVER
from melodeon.core.spec import read_spec

CURVE = {1: 100.0, 2: 190.0, 4: 350.0}
JOBS = 7
LIFE_S = 100.0
PASSED = tuple(point for point in POINTS if not point.startswith(("control.kill", "control.skip")))
"""Jobs of a fake fleet start and stop at once: none is killed, and none is taken back before it was started."""
CANCELLED = (2, 5)
"""Jobs that are cancelled, by number: one while it runs or waits, one at once."""


def job_file(number: int) -> dict[str, object]:
    """Deadlines with and without a curve, soft ones, best effort."""
    made: dict[str, object] = {"name": f"job{number}", "run": f"train.py {number % 3}", "virtual_workers": 4}
    made |= {"workers": "1-4", "steps": 60 + 30 * (number % 3), "workdir": "/", "restarts": 50}
    if number % 3 == 0:
        made |= {"deadline": "10m", "curve": CURVE}
    elif number % 3 == 1:
        made["deadline"] = "10m"
    return made


async def serve(folder: Path) -> None:
    """Be the controller and its user until every job is over."""
    fleet = FakeFleet(every_s=0.05, curves={"*": CURVE})
    controller = Controller(
        Store(folder / "cluster.db", snapshot_every=15),
        fleet,
        Cluster.parse("1x4:cpu"),
        policy="elasticflow",
        state_dir=folder,
        overheads=Overheads.none(),
    )
    await use(controller, [job_file(number) for number in range(JOBS)], CANCELLED)


async def use(controller: Controller, files: Sequence[Mapping[str, object]], cancelled: Collection[int]) -> None:
    """Run a controller and be its user until every job is over."""
    loop = asyncio.ensure_future(controller.run())
    names: dict[int, str] = {}
    for number, file in enumerate(files):
        answer = await controller.submit(read_spec(dict(file)), user="ada", request_id=f"r{number}")
        names[number] = answer.job.id
        say("submitted", number, answer.job.id)
        if number in cancelled:
            await controller.cancel(names[number], user="ada")
            say("cancelled", number, names[number])
    events = controller.subscribe(0)
    while not all(controller.job(name).phase in OVER for name in names.values()):
        await anext(events)
    while any(job.alive for job in controller.engine.state.live.values()):
        await anext(events)
    say("over", 0, "")
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await controller.close()


def say(what: str, number: int, job: str) -> None:
    """One line for whoever keeps the books."""
    os.write(1, (json.dumps([what, number, job]) + "\n").encode())


@dataclass
class Books:
    """What was acknowledged."""

    submitted: dict[int, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    kills: int = 0

    def read(self, output: bytes) -> bool:
        over = False
        for line in output.splitlines():
            what, number, job = json.loads(line)
            if what == "submitted" and self.submitted.setdefault(number, job) != job:
                self.wrong.append(f"request r{number} became {job} and {self.submitted[number]}")
            if what == "cancelled":
                self.cancelled.add(job)
            over = over or what == "over"
        return over


def child(folder: Path, points: str, books: Books) -> bool:
    """One life of a controller; returns whether everything is over."""
    env = dict(os.environ) | ({VARIABLE: points} if points else {})
    if not points:
        env.pop(VARIABLE, None)
    command = [sys.executable, "-m", "tests.control.killpoints", "--serve", str(folder)]
    ran = subprocess.run(command, env=env, capture_output=True, timeout=LIFE_S, check=False)
    over = books.read(ran.stdout)
    if ran.returncode == -9:
        books.kills += 1
    elif ran.returncode != 0:
        books.wrong.append(f"ended with {ran.returncode}: {ran.stderr.decode()[-2000:]}")
    return over


def one(point: str, nth: int) -> Books:
    """Kill at one point, go on, and check."""
    books = Books()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lives(folder, point, nth, books)
        check(folder, books)
    return books


def lives(folder: Path, point: str, nth: int, books: Books) -> None:
    """Controllers one after the other, the first two of which are killed at a point, until everything is over."""
    first = f"{point}=kill@{nth}" if point != "control.adopt" else f"control.store.after=kill@{4 + nth}"
    over = child(folder, first, books)
    if not over:
        # The next one is killed as well, at the same point or while it finds the jobs that run.
        over = child(folder, f"{point}=kill@{nth}", books)
    for _ in range(3):
        if over:
            break
        over = child(folder, "", books)
    if not over:
        books.wrong.append("it never came to an end")


def acknowledged(folder: Path, books: Books) -> dict[str, Job]:
    """The jobs that are there, compared with what was acknowledged."""
    store = Store(folder / "cluster.db")
    state, _ = store.load()
    store.close()
    jobs = {**state.past, **state.live}
    for number, name in books.submitted.items():
        if name not in jobs:
            books.wrong.append(f"{name} was acknowledged and is lost")
        same = [job for job in jobs.values() if job.spec["name"] == f"job{number}"]
        if len(same) != 1:
            books.wrong.append(f"job{number} is there {len(same)} times")
    for name in books.cancelled:
        if name in jobs and jobs[name].phase.value not in ("cancelled", "done"):
            books.wrong.append(f"the cancel of {name} was acknowledged and it is {jobs[name].phase.value}")
    for name, job in jobs.items():
        if job.phase.value not in ("done", "cancelled"):
            books.wrong.append(f"{name} ended as {job.phase.value}: {job.why}")
    return jobs


def check(folder: Path, books: Books) -> None:
    """What was acknowledged is so, and no job of the fake fleet ran twice at a time."""
    jobs = acknowledged(folder, books)
    for name, job in jobs.items():
        played = sorted(_lives(folder / "jobs" / name), key=lambda life: life.began)
        for before, after in pairwise(played):
            if before.ended_at is None or before.ended_at > after.began:
                books.wrong.append(f"{name} ran twice at a time: {before.order.incarnation}, {after.order.incarnation}")
        if job.phase.value == "done" and (not played or int(played[-1].step) != job.spec["steps"]):
            books.wrong.append(f"{name} is said to be done and is not")
        if any(life.ended is None for life in played):
            books.wrong.append(f"{name} still runs")


def _lives(folder: Path) -> list[Played]:
    return [msgspec.json.decode(path.read_bytes(), type=Played) for path in folder.glob("*/fake.json")]


def enumerated(count: int) -> list[tuple[str, int]]:
    """Points, each for the first, second, ... time that it is passed, until there are enough."""
    found = [(point, nth) for nth in range(1, 40) for point in PASSED]
    return found[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if asked.serve is not None:
        asyncio.run(serve(asked.serve))
        return
    bad = kills = 0
    for index, (point, nth) in enumerate(enumerated(asked.points), start=1):
        if asked.only not in point:
            continue
        books = one(point, nth)
        bad, kills = bad + bool(books.wrong), kills + books.kills
        print(f"{index} {point}@{nth}: {books.kills} kills, {'; '.join(books.wrong) or 'ok'}", flush=True)
    print(json.dumps({"points": asked.points, "kills": kills, "wrong": bad}))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
