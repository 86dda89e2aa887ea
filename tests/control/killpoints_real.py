"""The same with real jobs: a controller of real launchers, agents and workers is killed, and the bits are compared.

    python -m tests.control.killpoints_real [--only NAME]

Jobs train with torch on two CPU slots and go on while nobody serves. At the end: none is lost, none ran twice at a time
(by the records in the folders of its incarnations), cancels hold, no process is left, and every job that was trained to
its end has the digest of an undisturbed run.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from melodeon.backends.devices import find_devices
from melodeon.backends.fleet import Fleet
from melodeon.control.controller import Controller
from melodeon.control.job import Job
from melodeon.control.store import Store
from tests.backends.fleets import processes
from tests.control.killpoints import Books, acknowledged, child, lives, use

MODULE = "tests.control.killpoints_real"
SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "train.py"
CANCELLED = (1,)
"""It is cancelled once it runs, and would run for ever."""
POINTS = (
    ("store.append.written", 5),
    ("control.store.after", 7),
    ("control.launch.before", 2),
    ("control.launch.after", 1),
    ("control.place.after", 1),
    ("control.profile.before", 1),
    ("control.stop.before", 1),
    ("control.adopt", 3),
)


def job_files() -> list[dict[str, object]]:
    """One best effort, one that is cancelled, one that is measured first, one with a deadline and a curve."""
    shared = {"workdir": str(SCRIPT.parent), "virtual_workers": 4, "workers": "1-2", "restarts": 50}
    ends: list[dict[str, object]] = [{}, {}, {"deadline": "20m"}, {"deadline": "20m", "curve": {"1": 50.0, "2": 80.0}}]
    return [
        {
            "name": f"job{number}",
            "run": [SCRIPT.name, "--width", "64", "--seed", str(number)],
            "steps": 1_000_000 if number in CANCELLED else 300 + 100 * number,
            **shared,
            **end,
        }
        for number, end in enumerate(ends)
    ]


async def serve(folder: Path) -> None:
    """Be the controller and its user until every job is over."""
    devices = find_devices(devices=2)
    controller = Controller(
        Store(folder / "cluster.db", snapshot_every=15),
        Fleet(devices),
        devices.cluster,
        policy="elasticflow",
        state_dir=folder,
    )
    await use(controller, job_files(), cancelled_running=CANCELLED)


def one(point: str, nth: int, expected: dict[str, str | None]) -> Books:
    """Kill at one point, go on, and check."""
    books = Books()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lives(folder, point, nth, books, MODULE)
        jobs = acknowledged(folder, books)
        for job in jobs.values():
            check(folder, job, books)
            if job.phase.value == "done" and job.digest != expected.get(job.spec["name"], job.digest):
                books.wrong.append(f"{job.id} has other bits: {job.digest}")
        if left := processes(folder):
            books.wrong.append(f"processes are left: {left}")
    return books


def check(folder: Path, job: Job, books: Books) -> None:
    """A job's incarnations ran one after the other, and the last of a job that is done did all of it."""
    records = []
    for path in (folder / "jobs" / job.id).glob(f"{job.id}.*/run.json"):
        records.append((int(path.parent.name.rpartition(".")[2]), json.loads(path.read_bytes())))
    records.sort(key=lambda record: record[0])
    for (number, before), (other, after) in pairwise(records):
        ended = datetime.fromisoformat(before["created"]).timestamp() + before.get("seconds", float("inf"))
        if ended > datetime.fromisoformat(after["created"]).timestamp():
            books.wrong.append(f"{job.id} ran twice at a time: {number}, {other}")
    done = [record for _, record in records if record["status"] == "done"]
    if job.phase.value == "done" and [record["steps"] for record in done] != [job.spec["steps"]]:
        books.wrong.append(f"{job.id} is said to be done, and {len(done)} of its incarnations were")


def undisturbed() -> dict[str, str | None]:
    """The digests of the same jobs when nothing dies."""
    books = Books()
    with tempfile.TemporaryDirectory() as name:
        if not child(Path(name), "", books, MODULE) or books.wrong:
            sys.exit(f"the undisturbed run failed: {books.wrong}")
        return {job.spec["name"]: job.digest for job in acknowledged(Path(name), books).values() if job.digest}


def main() -> None:
    """Kill at every point of the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if asked.serve is not None:
        asyncio.run(serve(asked.serve))
        return
    expected = undisturbed()
    print(f"undisturbed: {expected}", flush=True)
    bad = kills = 0
    for point, nth in POINTS:
        if asked.only in point:
            books = one(point, nth, expected)
            bad, kills = bad + bool(books.wrong), kills + books.kills
            print(f"{point}@{nth}: {books.kills} kills, {'; '.join(books.wrong) or 'ok'}", flush=True)
    print(json.dumps({"points": len(POINTS), "kills": kills, "wrong": bad}))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
