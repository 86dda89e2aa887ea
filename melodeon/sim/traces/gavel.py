"""Gavel's traces (tab-separated, no header) and its throughput table (json).

    job type, command, folder, steps argument, needs data, total steps, scale factor, weight, SLO, arrival     10 fields
    job type, command, steps argument, needs data, total steps, arrival, scale factor                          7 (`msr`)

A job type is a model with its batch size, such as `ResNet-18 (batch size 128)`; the scale factor is the devices that
the job requests. An SLO is a number of times the job's length on the fastest type; -1 means none. The table is device
type -> "('job type', scale factor)" -> {"null": steps a second alone, others: with another job on the same device (not
read)}. A throughput of 0 means that the job does not fit there.
"""

import ast
import json
import re
from pathlib import Path

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Curves, Goal, JobId, JobSpec
from melodeon.core.text import counted, plain
from melodeon.sim.traces.rows import MOST, MOST_DEVICES, Row, Trace, csv_rows, jobs_of, open_text
from melodeon.sim.traces.throughputs import Throughputs

COLUMNS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
MSR_COLUMNS = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
_JOB_TYPE = re.compile(r"(?P<model>.+?)(?: \(batch size (?P<batch>\d{1,12})\))?", re.DOTALL)


def is_gavel(_: Path, header: tuple[str, ...]) -> bool:
    """Whether a file's first line, cut at commas, is one of the two."""
    return ",".join(header).count("\t") + 1 in (len(COLUMNS), len(MSR_COLUMNS))


def read_gavel(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """A trace of either kind; it says everything itself, so the seed is not used."""
    del seed
    with open_text(path) as file:
        num_fields = file.readline().count("\t") + 1
    columns = MSR_COLUMNS if num_fields == len(MSR_COLUMNS) else COLUMNS

    def parse(row: Row) -> JobSpec:
        model, batch = _model(row.text("job_type"))
        workers = row.devices("scale_factor")
        curves = _curves(row, throughputs, model, batch, workers)
        steps, submit_s = row.number("total_steps", above=0), row.number("arrival_time", least=0)
        duration_s = steps / curves[0][1].rate(workers)
        slo = row.number("SLO") if "SLO" in columns else -1.0
        return JobSpec(
            id=JobId(str(row.line - 1)),
            submit_s=submit_s,
            iterations=steps,
            curves=curves,
            deadline_s=submit_s + slo * duration_s if slo > 0 else None,
            goal=Goal.HARD if slo > 0 else Goal.BEST_EFFORT,
            requested_workers=workers,
            weight=row.number("priority_weight", above=0) if "priority_weight" in columns else 1.0,
            model=model,
            batch_size=batch,
            duration_s=duration_s,
        )

    return jobs_of(path.name, csv_rows(path, columns=columns, delimiter="\t"), parse, skip_bad=skip_bad)


def read_gavel_throughputs(path: Path) -> Throughputs:
    """The table as scaling curves by model and batch size; device types in capitals, fastest first."""
    with open_text(path) as file:
        text = file.read()
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}; it must be one JSON object") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON that can be read: a number or a nesting in it is too long") from error
    if not isinstance(table, dict) or not all(isinstance(measured, dict) for measured in table.values()):
        raise UsageError(
            f"{path} must be a JSON object of device types, each an object of job types: it is another file"
        )
    points: dict[tuple[str, int], dict[DeviceType, dict[int, float]]] = {}
    for name, measured in table.items():
        for key, rates in measured.items():
            job_type, workers = _key(path, key)
            rate = rates.get("null") if isinstance(rates, dict) else None
            if not isinstance(rate, int | float):
                raise UsageError(plain(f"{path}, {name}, {key}: there is no number for 'null', the job alone"))
            if not abs(rate) <= MOST:
                raise UsageError(plain(f"{path}, {name}, {key}: the number for 'null' must be at most {MOST:g}"))
            if rate > 0:
                kinds = points.setdefault(_model(job_type), {})
                measured_at = kinds.setdefault(DeviceType(name.upper()), {})
                if workers in measured_at:
                    raise UsageError(plain(f"{path}, {name}, {key}: it stands there twice, and must stand there once"))
                measured_at[workers] = float(rate)
    return Throughputs({setting: _fastest_first(kinds) for setting, kinds in points.items()})


def _key(path: Path, key: str) -> tuple[str, int]:
    try:
        job_type, workers = ast.literal_eval(key)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        job_type = workers = None
    if not isinstance(job_type, str) or not job_type or not isinstance(workers, int):
        raise UsageError(f"{plain(path)}: {key!r} must be a job type and a scale factor, like \"('A3C', 1)\"")
    if not 1 <= workers <= MOST_DEVICES:
        raise UsageError(f"{plain(path)}: the scale factor of {key!r} must be from 1 to {MOST_DEVICES:,}")
    return job_type, workers


def _model(job_type: str) -> tuple[str, int]:
    match = _JOB_TYPE.fullmatch(job_type)
    assert match is not None, "any text matches"
    return match["model"], int(match["batch"] or 0)


def _fastest_first(kinds: dict[DeviceType, dict[int, float]]) -> Curves:
    curves = [(kind, ScalingCurve(tuple(sorted(points.items())))) for kind, points in kinds.items()]
    return tuple(sorted(curves, key=lambda entry: -entry[1].rate(entry[1].points[0][0])))


def _curves(row: Row, throughputs: Throughputs, model: str, batch: int, workers: int) -> Curves:
    """Only on types where the job fits at the size that it requests."""
    found = throughputs.curves.get((model, batch))
    if not throughputs.curves:
        raise row.bad("job_type", "there are no throughput tables: give Gavel's by --throughputs FILE.json")
    if found is None:
        known = ", ".join(sorted({name for name, _ in throughputs.curves}))
        raise row.bad("job_type", f"{row.text('job_type')!r} has no throughputs: there are some for {known}")
    fits = tuple((kind, curve) for kind, curve in found if any(count == workers for count, _ in curve.points))
    if not fits:
        raise row.bad(
            "scale_factor", f"{row.text('job_type')} was not measured on {counted(workers, 'device')} of any type"
        )
    return fits
