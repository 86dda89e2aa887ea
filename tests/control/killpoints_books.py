"""What was asked of the controllers of one run and what they acknowledged, and whether it is so.

After every kill the log, as the dead controller left it, must hold all that was acknowledged; what was asked for and
not answered may be there or not. At the end everything is compared with what really ran.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import msgspec

from melodeon.control.job import Job
from melodeon.control.state import State, fold_all
from melodeon.control.store import Store
from melodeon.core.service import OVER
from tests.backends.fleets import processes
from tests.control.killpoints_jobs import FIRST, Kind, Life, Op, Said, job_file

Digests = Mapping[tuple[str, int], str]
"""By seed and steps."""


@dataclass
class Books:
    """One run: its jobs by number, and what their files may say."""

    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, Kind] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    pending: list[Op] = field(default_factory=list)
    values: dict[tuple[int, str], list[object]] = field(default_factory=dict)
    """What a field of a job may be: the last value that was acknowledged, and later ones that were asked for."""
    next: int = FIRST
    acknowledged: int = 0
    over: bool = False
    passed: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def life(self, folder: Path, turn: int, focus: str, *, seconds: float | None = None, last: bool = False) -> Life:
        """What the next controller's life begins with."""
        return Life(
            folder=str(folder),
            names=self.names,
            kinds=self.kinds,
            cancelled=sorted(self.cancelled),
            pending=self.pending,
            next=self.next,
            turn=turn,
            focus=focus,
            seconds=seconds,
            last=last,
        )

    def read(self, output: bytes) -> None:
        """Take note of what a life has said."""
        for line in output.splitlines():
            said = msgspec.json.decode(line, type=Said)
            if said.what == "passed":
                self.passed[said.text] = said.count
            self.over = self.over or said.what == "over"
            if said.op is None:
                continue
            if said.what == "asked":
                self._asked(said.op)
            else:
                self.pending.remove(said.op)
            if said.what == "told":
                self._told(said.op, said.text)

    def _asked(self, op: Op) -> None:
        if op not in self.pending:
            self.pending.append(op)
        if op.what == "submit":
            self.next = max(self.next, op.number + 1)
        for name, value in _fields(op):
            self.values.setdefault((op.number, name), []).append(value)

    def _told(self, op: Op, job: str) -> None:
        self.acknowledged += 1
        if op.what == "submit":
            if self.names.setdefault(op.number, job) != job:
                self.wrong.append(f"job{op.number} became {job} and {self.names[op.number]}")
            if op.value is not None:
                self.kinds[op.number] = msgspec.convert(op.value, Kind)
        if op.what == "cancel":
            self.cancelled.add(op.number)
        for name, value in _fields(op):
            self.values[op.number, name] = [value]

    # --- after a kill ---

    def check_log(self, folder: Path) -> None:
        """What the dead controller's log holds. Read from a copy, so that the next one finds it as it was left."""
        with tempfile.TemporaryDirectory() as name:
            for path in folder.glob("cluster.db*"):
                shutil.copy(path, name)
            self._check_jobs(_jobs(Path(name), self.wrong))

    def _check_jobs(self, jobs: Mapping[str, Job]) -> None:
        for number, name in self.names.items():
            job = jobs.get(name)
            if job is None:
                self.wrong.append(f"{name} was acknowledged and is lost")
                continue
            if len([other for other in jobs.values() if other.spec["name"] == f"job{number}"]) != 1:
                self.wrong.append(f"job{number} is there more than once")
            if number in self.cancelled and job.phase.value not in ("cancelling", "cancelled"):
                self.wrong.append(f"the cancel of {name} was acknowledged and it is {job.phase.value}")
            if job.phase.value in ("failed", "rejected"):
                self.wrong.append(f"{name} ended as {job.phase.value}: {job.why}")
            for field_name in ("steps", "deadline", "priority", "override"):
                self._check_field(number, job, field_name)

    def _check_field(self, number: int, job: Job, name: str) -> None:
        found = job.override if name == "override" else job.spec.get(name)
        allowed = self.values.get((number, name))
        if allowed is not None and found not in allowed:
            self.wrong.append(f"{name} of {job.id} is {found!r}, and {allowed!r} was acknowledged or asked for")

    # --- at the end ---

    def check_end(self, folder: Path, digests: Digests) -> None:
        """Everything has come to its end, once, with the right bits, and nothing runs any more."""
        jobs = _jobs(folder, self.wrong)
        self._check_jobs(jobs)
        for job in jobs.values():
            if job.phase not in OVER or job.alive:
                self.wrong.append(f"{job.id} is {job.phase.value} in the end")
            self._check_records(folder, job)
            if job.phase.value == "done":
                expected = digests.get((_seed(job), job.spec["steps"]))
                if job.digest != expected:
                    self.wrong.append(f"{job.id} has other bits: {job.digest} and not {expected}")
        if self.pending:
            self.wrong.append(f"never answered: {self.pending}")
        if left := processes(folder):
            self.wrong.append(f"processes are left: {left}")

    def _check_records(self, folder: Path, job: Job) -> None:
        """A job's incarnations ran one after the other, and the last of a job that is done did all of it."""
        records = []
        for path in (folder / "jobs" / job.id).glob(f"{job.id}.*/run.json"):
            records.append((int(path.parent.name.rpartition(".")[2]), json.loads(path.read_bytes())))
        records.sort(key=lambda record: record[0])
        for (number, before), (other, after) in pairwise(records):
            ended = datetime.fromisoformat(before["created"]).timestamp() + before.get("seconds", float("inf"))
            if ended > datetime.fromisoformat(after["created"]).timestamp():
                self.wrong.append(f"{job.id} ran twice at a time: {number}, {other}")
        done = [record for _, record in records if record["status"] == "done"]
        if job.phase.value == "done" and [record["steps"] for record in done] != [job.spec["steps"]]:
            self.wrong.append(f"{job.id} is said to be done, and {len(done)} of its incarnations were")
        if job.phase.value == "cancelled" and done:
            self.wrong.append(f"{job.id} is said to be cancelled and was trained to its end")


def _fields(op: Op) -> list[tuple[str, object]]:
    """What an operation makes of a job."""
    match op.what:
        case "submit":
            file = job_file(op.number, msgspec.convert(op.value, Kind | None))
            return [*((name, file.get(name)) for name in ("steps", "deadline", "priority")), ("override", None)]
        case "edit":
            assert isinstance(op.value, dict)
            return list(op.value.items())
        case "scale":
            return [("override", op.value)]
        case _:
            return []


def _seed(job: Job) -> str:
    run = job.spec["run"]
    return str(run[run.index("--seed") + 1])


def _jobs(folder: Path, wrong: list[str]) -> dict[str, Job]:
    """The jobs in a log; what its snapshots say must be what its events say."""
    store = Store(folder / "cluster.db")
    try:
        state, _ = store.load()
        told = fold_all(State(), store.events(limit=1_000_000))
    finally:
        store.close()
    if msgspec.to_builtins(told) != msgspec.to_builtins(state):
        wrong.append("the snapshot of the log is not what its events say")
    return {**state.past, **state.live}


def read_digests(folder: Path) -> dict[tuple[str, int], str]:
    """The digests of jobs that nobody disturbed."""
    wrong: list[str] = []
    jobs = _jobs(folder, wrong).values()
    if wrong or not all(job.digest for job in jobs):
        raise AssertionError(f"the undisturbed run failed: {wrong}, {[(job.id, job.why) for job in jobs]}")
    return {(_seed(job), int(job.spec["steps"])): str(job.digest) for job in jobs}
