"""`melodeon show`: a job of the cluster, how it stands and its story in sentences."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from melodeon.cli.cluster import ClusterJob, connect, print_value, say, say_next
from melodeon.cli.job import Output, from_here, wants_json
from melodeon.cli.output import print_titled
from melodeon.cli.submit import deadline_text
from melodeon.cli.wait import submit_again, tell_result
from melodeon.core.moments import day_and_clock
from melodeon.core.text import plain
from melodeon.sim.clock import length
from melodeon.viz.words import counted, duration, number

if TYPE_CHECKING:
    from melodeon.core.service import Device, JobInfo, Sentence

LIVE = ("profiling", "starting", "running", "suspending")


def show(job: ClusterJob = "last", output: Output = "table") -> None:
    """Show a job of the cluster, and tell its story."""
    as_json = wants_json(output)
    with connect() as cluster:
        info = cluster.job(job)
        story = cluster.story(info.id)
    if as_json:
        import msgspec

        print_value(info, story=msgspec.to_builtins(story))
        return
    now = time.time()
    _tell(info, now)
    print()
    tell_story(story, now)
    print()
    say_next(_next(info))


def _tell(info: "JobInfo", now: float) -> None:
    print(f"{info.id}  {info.phase.value}")
    when = f"{day_and_clock(info.submitted_at, now)}, {duration(now - info.submitted_at)} ago"
    say("submitted", f"by {info.user} at {when}")
    say("runs", " ".join(map(str, info.spec.get("run", ()))) + f" (in {from_here(str(info.spec.get('workdir', '.')))})")
    if info.deadline_at is not None:
        say("deadline", deadline_text(info, now))
    elif info.planned_finish_at is not None:
        left = info.planned_finish_at - now
        say("finish", f"planned {day_and_clock(info.planned_finish_at, now)}, in {duration(left)}; best effort")
    if info.earliest_deadline_at is not None:
        say("earliest", day_and_clock(info.earliest_deadline_at, now))
    if info.phase.value not in ("rejected",):
        say("steps", _steps(info))
    if info.workers:
        fixed = ", fixed by an operator" if info.override is not None else ""
        has_choice = info.min_workers != info.max_workers
        may = f" (it may have {info.min_workers} to {info.max_workers})" if has_choice else ""
        say("workers", f"{info.workers}{fixed}{may} on {where(info.devices)}")
    if info.curve:
        points = sorted((int(size), rate) for size, rate in info.curve.items())
        say("curve", "steps/s by workers: " + ", ".join(f"{size}: {rate:.3g}" for size, rate in points))
    if info.num_resizes or info.num_suspensions or info.incarnation > 1:
        changes = f"{counted(info.num_resizes, 'resize')}, {counted(info.num_suspensions, 'suspension')}"
        say("changes", f"{changes}, {counted(info.incarnation, 'start')}; {length(info.pause_s)} without progress")
    if info.why:
        say("why", info.why)
    tell_result(info)


def _steps(info: "JobInfo") -> str:
    total = f" of {number(info.total_steps)} ({info.step / info.total_steps:.0%})" if info.total_steps else ""
    rate = f", {info.steps_per_s:.3g} steps/s" if info.steps_per_s else ""
    metrics = "".join(f", {name} {'nan' if value is None else f'{value:.4g}'}" for name, value in info.metrics.items())
    return f"{number(info.step)}{total}{rate}{metrics}"


def tell_story(story: "Sequence[Sentence]", now: float) -> None:
    """A sentence a line, with its time."""
    indent = max((len(day_and_clock(part.at, now)) for part in story if part.at is not None), default=8) + 2
    for part in story:
        print_titled("" if part.at is None else day_and_clock(part.at, now), plain(part.text), indent=indent)


def where(devices: "Sequence[Device]") -> str:
    """`node000 (0, 1), node001 (0)`."""
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(str(device.index))
    return ", ".join(f"{node} ({', '.join(indices)})" for node, indices in nodes.items())


def _next(info: "JobInfo") -> str:
    if info.phase.value in LIVE:
        return f"melodeon logs -f {info.id}"
    if info.phase.value in ("waiting", "cancelling"):
        return f"melodeon wait {info.id}"
    if info.phase.value == "rejected":
        return submit_again(info)
    return f"melodeon logs {info.id}" if info.incarnation else "melodeon ps"  # one that never began has no output
