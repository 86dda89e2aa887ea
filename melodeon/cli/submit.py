"""`melodeon submit`: a job for the cluster, answered at once."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import connect, print_value, say, say_next
from melodeon.cli.job import Output, wants_json
from melodeon.cli.jobfile import command_line, read_job
from melodeon.cli.options import (
    Deadline,
    Determinism,
    Epochs,
    OnMiss,
    Order,
    Priority,
    Range,
    Steps,
    Threads,
    Until,
)
from melodeon.cli.times import flag
from melodeon.core.errors import Rejected, UsageError
from melodeon.core.moments import day_and_clock
from melodeon.viz.words import counted, duration

if TYPE_CHECKING:
    from melodeon.core.service import JobInfo, Submission

ENDED_OTHERWISE = ("failed", "cancelled", "rejected")
"""Phases of jobs that are over and have not finished: a deadline says nothing of them."""


def submit(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A job's file in YAML; - is stdin.")] = None,
    run: Annotated[str | None, typer.Option(metavar="'SCRIPT ARGS'", help="What to run, instead of a file.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; the script's name by default.")] = None,
    steps: Steps = None,
    epochs: Epochs = None,
    until: Until = None,
    deadline: Deadline = None,
    on_miss: OnMiss = None,
    workers: Range = None,
    virtual_workers: Annotated[int | None, typer.Option(help="Defines the result; else the script says.")] = None,
    priority: Priority = None,
    order: Order = None,
    determinism: Determinism = None,
    threads: Threads = None,
    devices: Annotated[str | None, typer.Option(metavar="cpu,A100", help="Types it may run on.")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A variable; several times.")] = None,
    workdir: Annotated[str | None, typer.Option(metavar="DIR", help="Where; the file's folder, or here.")] = None,
    curve: Annotated[str | None, typer.Option(metavar="1:3.5,2:6.8", help="Steps a second by workers.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="4G", help="What each process may use.")] = None,
    restarts: Annotated[int | None, typer.Option(help="How many lost workers to replace.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of it.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, whose exit code this has.")] = False,
    output: Output = "table",
) -> None:
    """Submit a job to the cluster: by a file, flags, or both.

    Answers at once: admitted, with the planned finish; or rejected, with the earliest deadline that would be kept.
    """
    flags: dict[str, object] = {
        "run": run,
        "name": name,
        "steps": steps,
        "epochs": epochs,
        "until": until,
        "deadline": deadline,
        "on_miss": on_miss,
        "workers": workers,
        "virtual_workers": virtual_workers,
        "priority": priority,
        "order": order,
        "determinism": determinism,
        "threads": threads,
        "devices": devices,
        "checkpoint": checkpoint,
        "env": env or None,
        "workdir": workdir,
        "curve": curve,
        "memory": memory,
        "restarts": restarts,
    }
    raise typer.Exit(_submit(file, flags, dry_run=dry_run, wait=wait, as_json=wants_json(output)))


def _submit(file: str | None, flags: Mapping[str, object], *, dry_run: bool, wait: bool, as_json: bool) -> int:
    """Submit, tell the answer, and return the exit code."""
    if dry_run and wait:
        raise UsageError("--dry-run submits nothing that --wait could follow: give one of them")
    job = read_job(file, flags)
    with connect() as cluster:
        answer = cluster.submit(job, dry_run=dry_run)
    rejected = answer.admitted is False

    def retry(job: "JobInfo") -> str:
        return next_try("submit", file, flags, job)

    again = retry(answer.job) if rejected else ""
    follows = wait and not rejected
    if not as_json:
        tell(answer, again)
    elif not follows:
        print_value(answer, next=again or answer.next)
    if follows:
        from melodeon.cli.wait import wait_for

        return wait_for(answer.job.id, None, as_json=as_json, quiet=as_json, retry=retry)
    return Rejected.exit_code if rejected else 0


def tell(answer: "Submission", again: str) -> None:
    """The answer for people; `again` is what to try where it was no."""
    job, now = answer.job, time.time()
    say({True: "admitted", False: "rejected", None: "measuring"}[answer.admitted], answer.text)
    if answer.admitted is False:
        say_next(again)
        return
    if job.deadline_at is not None:
        judged = job if answer.admitted else replace(job, planned_finish_at=None)  # before that it is a guess
        say("deadline", deadline_text(judged, now))
    if job.workers:
        most = f" of at most {job.max_workers}" if job.max_workers > job.workers else ""
        rate = f", {job.curve[str(job.workers)]:.3g} steps/s" if str(job.workers) in job.curve else ""
        say("share", f"{counted(job.workers, 'worker')}{most}{rate}")
    if answer.dry_run:
        say("next", "leave out --dry-run to submit it")
    elif answer.next:
        say_next(answer.next)


def deadline_text(job: "JobInfo", now: float) -> str:
    """When it is due, and how that fits with what is planned."""
    assert job.deadline_at is not None, "only where there is a deadline"
    left = job.deadline_at - now
    text = day_and_clock(job.deadline_at, now) + (f", in {duration(left)}" if left >= 0 else f", {duration(-left)} ago")
    text += " (soft)" if job.goal == "soft" else ""
    end = job.finished_at or job.planned_finish_at
    if end is None or job.phase.value in ENDED_OTHERWISE:
        return text
    spare = job.deadline_at - end
    what = "finished" if job.finished_at else "planned to finish"
    return f"{text}; {what} {duration(abs(spare))} {'before' if spare >= 0 else 'after'} it"


def next_try(command: str, first: str | None, flags: Mapping[str, object], job: "JobInfo") -> str:
    """The command that would be accepted, as far as anybody knows."""
    if job.earliest_deadline_at is not None:
        judged_at = job.finished_at or time.time()
        return command_line(command, first, flags, deadline=flag(max(0.0, job.earliest_deadline_at - judged_at)))
    from melodeon.sched.quota import is_refusal

    if job.goal != "hard" or is_refusal(job.why):
        return "melodeon ps"  # one that ends makes room
    return command_line(command, first, flags, on_miss="soft")
