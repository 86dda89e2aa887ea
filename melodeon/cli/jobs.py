"""Commands that change a running job: scale, migrate, profile, checkpoint, stop. None of them changes the result.

Of these, the cluster's jobs take `scale`, an operator's override of the policy, and `checkpoint`.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from melodeon.cli.changes import accepted, say, seated, settled, tell_accepted, tell_view, virtual_workers, waited
from melodeon.cli.cluster import Local, connect, print_value
from melodeon.cli.job import (
    JobName,
    Output,
    attach,
    clusters_job,
    complete_any,
    find_job,
    from_here,
    is_lost,
    on_cluster,
    read_json,
    require_own,
    wants_json,
)
from melodeon.cli.options import MOST
from melodeon.cli.output import print_json, print_table
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError
from melodeon.viz.timeline import whole
from melodeon.viz.words import counted

if TYPE_CHECKING:
    from melodeon.coord.client import JobHandle
    from melodeon.coord.messages import Answer
    from melodeon.coord.registry import Entry
    from melodeon.core.service import JobInfo

AUTO = "auto"
"""Instead of a number: what the cluster's policy decides."""
ENDS_S = 60.0
"""How long a job may take to end after it has agreed to stop: a step, a checkpoint, and leaving."""
KILLED_S = 20.0
"""The same for `--now`: the launcher kills what still runs."""
WORTH = 1.05
"""More workers must make the job at least this much faster to be recommended."""


def scale(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="A job of the cluster or of `run`.", autocompletion=complete_any),
    ] = None,
    workers: Annotated[
        str | None, typer.Argument(metavar="N", help="How many workers; auto: as the cluster decides.")
    ] = None,
    out: Annotated[int | None, typer.Option("--out", metavar="K", help="K workers more.")] = None,
    in_: Annotated[int | None, typer.Option("--in", metavar="K", help="K workers fewer.")] = None,
    remove: Annotated[str | None, typer.Option(metavar="3,5", help="Let these workers go.")] = None,
    on: Annotated[str | None, typer.Option(metavar="AGENT", help="Where new workers start.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return when the job has the wish.")] = False,
    local: Local = False,
    output: Output = "table",
) -> None:
    """Give a running job more or fewer workers. It trains on meanwhile.

    Of a job of the cluster, N is an operator's word above the policy's, and auto takes it back. Without JOB, the newest
    that `melodeon run` has started is meant.
    """
    as_json = wants_json(output)
    if workers is None and out is None and in_ is None and remove is None:
        job, workers = None, job  # `melodeon scale 4` speaks of the newest job
    found = on_cluster(job, local=local)
    if found is not None:
        given = {"--out": out, "--in": in_, "--remove": remove, "--on": on}
        _override(found, workers, [name for name, value in given.items() if value is not None], as_json=as_json)
        return
    what, values = _wish(workers, out, in_, remove, on)
    handle = attach(job, instead="scale")
    if what == "scale" and on is not None:
        status = settled(handle)
        what, values = "scale_out", {"n": _more(values["n"], len(seated(status)), on), "on": on}
    else:
        status = handle.status()

    def wish() -> "Answer":
        match what:
            case "scale":
                return handle.scale(values["n"])
            case "scale_out":
                return handle.scale_out(values["n"], on)
            case _:
                return handle.scale_in(**values)

    if no_wait:
        answer = accepted(handle, what, wish)
        if answer is None:
            tell_accepted(handle, " ".join([what.replace("_", " "), *map(str, values.values())]), as_json=as_json)
            return
    else:
        answer = waited(handle, wish)
    tell_view(handle, answer, before=status, as_json=as_json)


def migrate(
    job: JobName = None,
    worker: Annotated[int | None, typer.Option(metavar="K", help="The worker to move.")] = None,
    to: Annotated[str | None, typer.Option(metavar="AGENT", help="Where it goes.")] = None,
    output: Output = "table",
) -> None:
    """Move a worker to a fresh process, or to another agent's node."""
    as_json = wants_json(output)
    handle = attach(job, instead="scale")
    status = handle.status()
    answer = waited(handle, lambda: handle.migrate(worker=worker, to=to))
    tell_view(handle, answer, before=status, as_json=as_json)


def profile(
    job: JobName = None,
    min_: Annotated[int | None, typer.Option("--min", metavar="A", help="The smallest size; 1 by default.")] = None,
    max_: Annotated[
        int | None, typer.Option("--max", metavar="B", help="The largest; twice today's by default.")
    ] = None,
    output: Output = "table",
) -> None:
    """Measure a job's steps per second at several sizes. It trains on meanwhile."""
    as_json = wants_json(output)
    low = 1 if min_ is None else _positive("--min", min_)
    if max_ is not None and _positive("--max", max_) < low:
        raise UsageError(f"--min {low} is more than --max {max_}: choose sizes from small to large")
    handle = attach(job, instead="scale")
    if max_ is None:
        status = handle.status()
        most = virtual_workers(status) or low
        max_ = max(low, min(most, 2 * len(seated(status))))
    if not as_json:
        print(f"measuring {handle.id} from {low} to {counted(max_, 'worker')}; it trains on ...", file=sys.stderr)
    high = max_
    answer = waited(handle, lambda: handle.profile(low, high))
    rates = _rates(answer.values)
    if as_json:
        print_json({"job": handle.id, "text": answer.text, "steps_per_s": {str(size): rates[size] for size in rates}})
        return
    if rates:
        print_table(("workers", "steps/s", "speed-up", "efficiency"), _profile_rows(rates))
    say("done", answer.text)
    if rates:
        say("next", f"melodeon scale {handle.id} {_worth(rates)}")


def checkpoint(job: JobName = None, output: Output = "table") -> None:
    """Have a running job write a checkpoint at its next step."""
    as_json = wants_json(output)
    handle = attach(job)
    answer = waited(handle, handle.checkpoint)
    if as_json:
        print_json({"job": handle.id, "text": answer.text, **answer.values})
        return
    say("done", answer.text)


def stop(
    job: JobName = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the step's end or a checkpoint.")] = False,
    output: Output = "table",
) -> None:
    """End a running job at its next step. A script that keeps checkpoints writes one."""
    as_json = wants_json(output)
    entry = _one_to_stop(job)
    require_own(entry, "cancel")
    how = "killed" if now else _ask_to_stop(entry)
    if now:
        _kill(entry)
    record = read_json(Path(entry.run_dir) / "run.json")
    text = f"job {entry.id} has ended: {how}"
    if as_json:
        print_json({"job": entry.id, "text": text, "step": record.get("steps"), "status": record.get("status")})
        return
    say("done", text)
    say("run", from_here(entry.run_dir))


def _override(job: "JobInfo", workers: str | None, others: Sequence[str], *, as_json: bool) -> None:
    """An operator's word on a job of the cluster."""
    if workers is None or others:
        said = " and ".join(others) or "nothing"
        raise UsageError(
            f"job {job.id} is the cluster's, which places its workers itself, and scale was given {said}: say how "
            f"many, as in `melodeon scale {job.id} 4`, or auto"
        )
    number = None if workers == AUTO else _positive("N", workers)
    with connect() as cluster:
        made = cluster.scale(job.id, number)
    if as_json:
        print_value(made)
        return
    fixed = "as many workers as the policy gives it" if made.override is None else counted(made.override, "worker")
    say("done", f"{made.id} shall have {fixed}; it has {made.workers} now")
    say("next", f"melodeon show {made.id}" if made.override is None else f"melodeon scale {made.id} {AUTO}")


def _wish(
    workers: str | None, out: int | None, in_: int | None, remove: str | None, on: str | None
) -> tuple[str, dict[str, Any]]:
    """What to ask of the job; exactly one way to say it must have been used."""
    given = {"N": workers, "--out": out, "--in": in_, "--remove": remove}
    used = [name for name, value in given.items() if value is not None]
    if len(used) != 1:
        said = "nothing" if not used else " and ".join(used)
        raise UsageError(
            f"scale was given {said}: say one of N, --out K, --in K, --remove 3,5, as in `melodeon scale 4`"
        )
    if on is not None and used[0] in ("--in", "--remove"):
        raise UsageError(f"--on {on} says where new workers start, and {used[0]} starts none: leave --on out")
    if workers == AUTO:
        raise UsageError(f"N {AUTO} is for jobs of the cluster, and none was named: give a number, such as 4")
    match used[0]:
        case "N":
            return "scale", {"n": _positive("N", workers)}
        case "--out":
            return "scale_out", {"n": _positive("--out", out)} | ({} if on is None else {"on": on})
        case "--in":
            return "scale_in", {"n": _positive("--in", in_)}
        case _:
            return "scale_in", {"workers": _numbers(str(remove))}


def _positive(name: str, value: object) -> int:
    found = _number(value)
    if found is None or found < 1:
        raise UsageError(f"{name} {value!r} is no number of workers: give a whole number from 1 to {MOST:,}, such as 4")
    return found


def _number(value: object) -> int | None:
    """A whole number of people's size."""
    found = whole(value) if len(str(value)) <= len(str(MOST)) else None
    return found if found is not None and found <= MOST else None


def _numbers(text: str) -> list[int]:
    found = [_number(part.strip()) for part in text.split(",")]
    numbers = [number for number in found if number is not None]
    if len(numbers) != len(found) or len(set(numbers)) != len(numbers):
        raise UsageError(f"--remove {text!r} is no list of workers: give each number once, such as 3,5")
    return numbers


def _more(wanted: int, now: int, on: str) -> int:
    if wanted <= now:
        raise UsageError(
            f"--on {on} says where new workers start, but {wanted} is not more than the {now} that run: leave --on out"
        )
    return wanted - now


def _rates(values: Mapping[str, Any]) -> dict[int, float]:
    """Size -> steps per second, in order; JSON-like values have their keys as text."""
    nested = next((value for value in values.values() if isinstance(value, Mapping)), values)
    found = {
        size: float(rate) for key, rate in nested.items() if (size := whole(key)) and isinstance(rate, int | float)
    }
    return dict(sorted(found.items()))


def _worth(rates: Mapping[int, float]) -> int:
    """The smallest size that is about as fast as the fastest: more workers would hardly help."""
    return min(size for size, rate in rates.items() if rate * WORTH >= max(rates.values()))


def _profile_rows(rates: Mapping[int, float]) -> list[tuple[str, ...]]:
    smallest = min(rates)
    rows: list[tuple[str, ...]] = []
    for size, rate in rates.items():
        speed_up = rate / rates[smallest] if rates[smallest] else 0.0
        rows.append((str(size), f"{rate:.3g}", f"{speed_up:.2f}", f"{speed_up * smallest / size:.0%}"))
    return rows


def _one_to_stop(job: str | None) -> "Entry":
    """The job that is meant; where several run, one must be named, since a wrong guess could not be taken back."""
    from melodeon.coord import registry

    running = [entry for entry in registry.entries() if clusters_job(entry) is None] if job is None else []
    if len(running) > 1:
        names = ", ".join(entry.id for entry in running)
        raise UsageError(f"{len(running)} jobs run on this machine: name the one to stop, of {names}")
    return find_job(job)


def _ask_to_stop(entry: "Entry") -> str:
    """How it ended, in the job's words."""
    from melodeon.coord.client import JobHandle

    handle = JobHandle(entry)
    said = ""
    with contextlib.suppress(NotFound):  # it has come to its end meanwhile, or somebody else has stopped it
        answer = waited(handle, lambda: _stopped(handle))
        said = answer.text if answer.values.get("outcome") else ""  # else it was stopping already
    if not _ended(entry, ENDS_S):
        raise MelodeonError(
            f"job {entry.id} is to stop, but still runs after {ENDS_S:.0f} s: "
            f"end it at once by `melodeon stop --now {entry.id}`"
        )
    record = read_json(Path(entry.run_dir) / "run.json")
    return said or ("lost" if is_lost(record) else str(record.get("status")))


def _stopped(handle: "JobHandle") -> "Answer":
    """The answer to a wish to stop; one that comes at no boundary of a step is not waited for without end."""
    try:
        return handle.ask("stop", timeout_s=ENDS_S)
    except Unreachable as silent:
        raise Unreachable(f"{silent}; end it at once by `melodeon stop --now {handle.id}`") from None


def _kill(entry: "Entry") -> None:
    """Two signals tell the launcher that somebody is in a hurry; two of one kind could arrive as one."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if entry.is_alive:
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(entry.pid, number)
    if not _ended(entry, KILLED_S):
        raise MelodeonError(f"job {entry.id} did not end within {KILLED_S:.0f} s: its launcher is process {entry.pid}")


def _ended(entry: "Entry", within_s: float) -> bool:
    """Whether the launcher ends in time."""
    try:
        ended = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return True
    try:
        until = time.monotonic() + within_s
        while entry.is_alive and (left := until - time.monotonic()) > 0:
            select.select([ended], [], [], left)
        return not entry.is_alive
    finally:
        os.close(ended)
