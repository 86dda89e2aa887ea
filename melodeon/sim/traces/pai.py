"""Alibaba PAI's pair of tables, `pai_job_table` and `pai_task_table`; give either, the other lies beside it.

    job_name, inst_id, user, status, start_time, end_time
    job_name, task_name, inst_num, status, start_time, end_time, plan_cpu, plan_mem, plan_gpu, gpu_type

The csv files have no header. A job is submitted at its start_time and needs `inst_num x plan_gpu / 100` devices, added
over its tasks and rounded up: a part of a device counts as one. It ran from its first task's start to its last one's
end. Jobs without a device, and jobs of which a task never started or never ended, are left out; `gpu_type` is not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from melodeon.core.errors import NotFound, UsageError
from melodeon.core.jobs import JobId
from melodeon.sim.traces.recorded import Recorded, recorded_trace
from melodeon.sim.traces.rows import MOST_DEVICES, BadCell, BadRow, Row, Trace, csv_rows
from melodeon.sim.traces.throughputs import Throughputs

JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
STATUS = ("Running", "Terminated", "Failed", "Waiting")


@dataclass(frozen=True, slots=True)
class Work:
    """What a job's tasks come to."""

    devices: float = 0.0
    start_s: float = float("inf")
    end_s: float = 0.0
    is_whole: bool = True
    """Every task with a device ran from a start to an end, and none was badly written."""


def knows_pai(_: Path, first: tuple[str, ...]) -> bool:
    """Whether a first line is one of either table."""
    return first in (JOB, TASK) or (len(first) in (len(JOB), len(TASK)) and first[3] in STATUS)


def read_pai(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """The jobs of a pair of tables."""
    jobs, tasks = _pair(path)
    work, bad = _work(tasks, skip_bad)

    def parse(row: Row) -> Recorded | None:
        name = row.text("job_name")
        done = work.get(name)
        submit_s = row.number("start_time", least=0) if row.has("start_time") else None
        if done is None or submit_s is None or not done.is_whole or not done.devices or done.end_s <= done.start_s:
            return None
        return Recorded(
            id=JobId(name),
            submit_s=submit_s,
            duration_s=done.end_s - done.start_s,
            workers=ceil(done.devices - 1e-9),
            user=row.text("user"),
        )

    trace = recorded_trace(jobs.name, _rows(jobs, JOB), parse, throughputs, seed=seed, skip_bad=skip_bad)
    return replace(trace, bad=(*bad, *trace.bad))


def _pair(path: Path) -> tuple[Path, Path]:
    """The job table and the task table."""
    for mine, other in (("job_table", "task_table"), ("task_table", "job_table")):
        if mine in path.name:
            stem = path.name.replace(mine, other).removesuffix(".gz")
            beside = next((found for end in ("", ".gz") if (found := path.with_name(stem + end)).is_file()), None)
            if beside is None:
                raise NotFound(f"{path.with_name(stem)} is not there: the two PAI tables must lie in one folder")
            return (path, beside) if mine == "job_table" else (beside, path)
    raise UsageError(
        f"{path} has neither job_table nor task_table in its name: keep PAI's names, so that both are found"
    )


def _work(path: Path, skip_bad: bool) -> tuple[dict[str, Work], list[BadRow]]:
    work: dict[str, Work] = {}
    bad: list[BadRow] = []
    for row in _rows(path, TASK):
        name = row.cells.get("job_name", "").strip()
        before = work.get(name, Work())
        try:
            work[name] = _added(before, row)
        except BadCell as problem:
            if not skip_bad:
                raise
            bad.append(BadRow(str(problem.path), problem.line, problem.column, problem.problem))
            work[name] = replace(before, is_whole=False)
    return work, bad


def _added(work: Work, row: Row) -> Work:
    row.text("job_name")
    devices = row.number("plan_gpu", least=0) / 100 if row.has("plan_gpu") else 0.0
    devices *= row.devices("inst_num") if row.has("inst_num") else 1
    if work.devices + devices > MOST_DEVICES:
        raise row.bad("plan_gpu", f"its job would need {work.devices + devices:,.0f} devices: {MOST_DEVICES:,} at most")
    if not devices:
        return work
    if not row.has("start_time") or not row.has("end_time"):
        return replace(work, devices=work.devices + devices, is_whole=False)
    start_s, end_s = row.number("start_time", least=0), row.number("end_time", least=0)
    return Work(work.devices + devices, min(work.start_s, start_s), max(work.end_s, end_s), work.is_whole)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """Every line; a header, which some copies have, is none."""
    return (row for row in csv_rows(path, columns=columns) if row.cells["job_name"] != "job_name")
