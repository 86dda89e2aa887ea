"""The cluster's part of `melodeon ps`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from melodeon.cli.cluster import is_named, there
from melodeon.cli.job import clusters_job, from_here
from melodeon.cli.output import fitted, print_wrapped
from melodeon.core.errors import Unreachable
from melodeon.core.text import plain
from melodeon.viz.words import counted, duration, number

if TYPE_CHECKING:
    from melodeon.core.service import JobInfo, Overview

COLUMNS = ("job", "user", "phase", "workers", "steps", "deadline", "finish")
NUMBERS = ("workers", "steps")
GIVE_WAY = ("user", "finish", "deadline")
"""Columns that are left out, in this order, where lines are too long: an id is never cut, since people copy it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A cluster and its jobs."""

    overview: "Overview"
    jobs: "tuple[JobInfo, ...]"
    all_jobs: bool

    def to_json(self) -> dict[str, object]:
        """As the service says it."""
        import msgspec

        return {"overview": msgspec.to_builtins(self.overview), "jobs": msgspec.to_builtins(self.jobs, str_keys=True)}

    def tell(self) -> None:
        """A line a job, and how the cluster stands."""
        if self.jobs:
            rows = [_cells(job, self.overview.now) for job in self.jobs]
            print("\n".join(fitted(COLUMNS, rows, numbers=NUMBERS, leave_out=GIVE_WAY)))
            print()
        view = self.overview
        used = f"{view.devices_used} of {counted(view.num_devices, 'device')} in use"
        if away := view.num_devices - view.devices_up:
            used += f", {away} drained or down"
        used += f", policy {view.policy}"
        if self.jobs:
            print(f"{used}\nnext: melodeon show {plain(self.jobs[-1].id)}")
        else:
            known = sum(view.jobs.values()) if not self.all_jobs else 0
            ended = f"; {counted(known, 'job')} ended, see `melodeon ps -a`" if known else ""
            print_wrapped(f"no job on the cluster ({used}){ended}: submit one by `melodeon submit FILE`")


def ask(*, all_jobs: bool) -> Found | None:
    """The cluster's jobs; None where there is no cluster, and where one that nobody named does not answer: a note."""
    cluster = there()
    if cluster is None:
        return None
    from melodeon.core.service import OVER, Phase

    try:
        with cluster:
            view = cluster.overview()
            if all_jobs:
                jobs = cluster.jobs()
            else:
                phases = [phase for phase in Phase if phase not in OVER and view.jobs.get(phase.value)]
                found = [job for phase in phases for job in cluster.jobs(phase=phase)]
                jobs = tuple(sorted({job.id: job for job in found}.values(), key=lambda job: job.submitted_at))
    except Unreachable as error:
        if is_named():
            raise
        print(f"note: {error}", file=sys.stderr)
        return None
    return Found(overview=view, jobs=jobs, all_jobs=all_jobs)


def left_alone() -> dict[Path, list[str]]:
    """The jobs that go on here while nobody serves their cluster, by its state folder."""
    from melodeon.control import address
    from melodeon.coord import registry

    found: dict[Path, list[str]] = {}
    for entry in registry.entries():
        name = clusters_job(entry)
        if name is not None:
            found.setdefault(Path(entry.run_dir).parents[2], []).append(name)
    return {state: names for state, names in found.items() if address.find(state) is None}


def tell_left_alone(state: Path, names: Sequence[str]) -> None:
    """Which jobs go on without their service, and how they are found again."""
    goes, it = ("goes", "it") if len(names) == 1 else ("go", "them")
    listed = ", ".join(map(plain, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"{counted(len(names), 'job')} of a cluster {goes} on here, and nobody serves it ({listed})"
    print_wrapped(f"{text}: `melodeon serve --state {shlex.quote(from_here(state))}` finds {it} again")


def _cells(job: "JobInfo", now: float) -> Sequence[str]:
    over = job.finished_at is not None or job.phase.value == "rejected"
    return (
        plain(job.id),
        plain(job.user),
        job.phase.value,
        "-" if over else f"{job.workers}/{job.max_workers}",
        f"{job.step / job.total_steps:.0%}" if job.total_steps else number(job.step),
        _deadline(job, now),
        _finish(job, now),
    )


def _deadline(job: "JobInfo", now: float) -> str:
    if job.deadline_at is None:
        return "-"
    if job.finished_at is not None and job.phase.value == "done":
        return "met" if job.finished_at <= job.deadline_at else f"{duration(job.finished_at - job.deadline_at)} late"
    left = job.deadline_at - now
    return f"in {duration(left)}" if left >= 0 else f"{duration(-left)} ago"


def _finish(job: "JobInfo", now: float) -> str:
    if job.finished_at is not None:
        return f"{duration(now - job.finished_at)} ago"
    return "-" if job.planned_finish_at is None else f"in {duration(max(0.0, job.planned_finish_at - now))}"
