"""What the charts of a job's page draw: columns of numbers, worked out here so that the script only draws them."""

from collections.abc import Mapping, Sequence
from typing import Any

from melodeon.control.web.words import zone
from melodeon.core.service import OVER, JobInfo, Series, finite

Column = list[float | None]

OWN = ("step", "at", "workers_at", "workers", "pause_at", "pause_s")
"""Columns of a series that are no metric."""


def chart_data(job: JobInfo, series: Series, now: float) -> dict[str, Any]:
    """All charts of one job."""
    end = job.finished_at if job.phase in OVER and job.finished_at is not None else now
    columns = series.columns
    return {
        "now": now,
        "east_s": zone(now)[1],
        "over": job.phase in OVER,
        "metrics": _metrics(columns),
        "workers": _workers(columns, end),
        "burn": _burn(job, columns, end),
        "pauses": {"at": columns.get("pause_at", ()), "s": columns.get("pause_s", ())},
    }


def _metrics(columns: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Every logged metric by step; the loss comes first."""
    names = sorted((name for name in columns if name not in OWN), key=lambda name: (name != "loss", name))
    kept: dict[float, int] = {}
    for index, step in enumerate(columns.get("step", ())):
        if step is not None:
            kept[step] = index  # of one step the newest: it may have been trained twice
    steps = sorted(kept)
    values = [[finite(columns[name][kept[step]]) for step in steps] for name in names]
    return {"names": names, "step": steps, "values": values}


def _workers(columns: Mapping[str, Sequence[float | None]], end: float) -> dict[str, Column]:
    at, count = list(columns.get("workers_at", ())), list(columns.get("workers", ()))
    if at and at[-1] is not None and end > at[-1]:
        at, count = [*at, end], [*count, count[-1]]
    return {"at": at, "count": count}


def _burn(job: JobInfo, columns: Mapping[str, Sequence[float | None]], end: float) -> dict[str, Column]:
    """Steps that are left, beside a straight line to the deadline, and the way to the planned finish."""
    total = job.total_steps
    if not total:
        return {"at": [], "left": [], "line": [], "plan": []}
    left: dict[float, float] = {job.submitted_at: float(total)}
    if job.started_at is not None:
        left[job.started_at] = float(total)
    for at, step in zip(columns.get("at", ()), columns.get("step", ()), strict=True):
        if at is not None and step is not None:
            left[at] = max(0.0, total - step)
    left[max(end, job.submitted_at)] = float(max(0, total - job.step))
    planned = job.planned_finish_at if job.phase not in OVER else None
    moments = set(left)
    if job.deadline_at is not None:
        moments.add(job.deadline_at)
    if planned is not None and planned > end:
        moments.add(planned)
    ordered = sorted(moments)
    plan: dict[float, float] = {}
    if planned is not None and planned > end:
        plan = {end: float(max(0, total - job.step)), planned: 0.0}
    return {
        "at": list(ordered),
        "left": [left.get(moment) for moment in ordered],
        "line": [_on_line(job, float(total), moment) for moment in ordered],
        "plan": [plan.get(moment) for moment in ordered],
    }


def _on_line(job: JobInfo, total: float, at: float) -> float | None:
    """What may be left at a moment of a job that goes evenly to its deadline."""
    if job.deadline_at is None or not job.submitted_at <= at <= job.deadline_at:
        return None
    length_s = job.deadline_at - job.submitted_at
    return total * (job.deadline_at - at) / length_s if length_s > 0 else None
