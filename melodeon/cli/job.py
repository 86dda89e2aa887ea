"""Which job a person means, and how commands speak with it.

A job is named by its id, the beginning of it, or not at all: the newest that runs. `logs` and `trace` also take a run
that has ended, by its id, the beginning of it, or its folder. The control plane is imported on first use, so that help
stays fast.

A start of a cluster's job runs here like any other, called `<id>.<start>`: it is found by the job's id too, and
commands that would change it behind the cluster's back refuse it.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.cluster import STATE, complete_cluster, there
from melodeon.cli.output import require_format
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError
from melodeon.core.launch import Launch

if TYPE_CHECKING:
    from melodeon.coord.client import JobHandle
    from melodeon.coord.registry import Entry
    from melodeon.core.service import JobInfo

RUNS_ROOT = Launch().runs_root


def complete_job(incomplete: str) -> list[str]:
    """The ids of running jobs, for the shell; a registry that cannot be read completes nothing."""
    from melodeon.coord import registry

    with contextlib.suppress(OSError, MelodeonError):  # a shell that asks for words must not get a traceback
        names = [clusters_job(entry) or entry.id for entry in registry.entries()]
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_any(incomplete: str) -> list[str]:
    """Jobs of the cluster, and jobs that run on this machine."""
    return list(dict.fromkeys([*complete_cluster(incomplete), *complete_job(incomplete)]))


def complete_run(incomplete: str) -> list[str]:
    """Jobs of the cluster, running jobs, and runs kept in the default place below this folder."""
    kept = [run.name for run in runs_in(RUNS_ROOT) if run.name.startswith(incomplete)]
    return list(dict.fromkeys([*complete_any(incomplete), *kept]))


JobName = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A running job's id, or the beginning of it; without it the newest.",
        autocompletion=complete_job,
    ),
]
RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A job of the cluster, a running job, or a run; without it the newest.",
        autocompletion=complete_run,
    ),
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json", help="How to print.")]
RunsRoot = Annotated[str, typer.Option(metavar="DIR", help="Where runs are kept.")]


def wants_json(output: str) -> bool:
    """Whether `-o json` was given; anything but the two formats is refused."""
    require_format(output)
    return output == "json"


def find_job(name: str | None, runs_root: str = RUNS_ROOT) -> "Entry":
    """The running job that is meant; one that has ended is told from one that never was."""
    try:
        return _find_running(name, runs_root)
    except NotFound:
        if name is None:
            raise NotFound("no job runs on this machine: start one by `melodeon run SCRIPT`") from None
        ended = find_ended(name, runs_root)
        if ended is None:
            _say_if_clusters(name)
            raise
        record = read_json(ended / "run.json")
        status = "lost" if is_lost(record) else record.get("status", "not known")
        if status == "running":
            raise _unasked(name, ended, record) from None
        raise NotFound(
            f"job {name!r} does not run any more (status: {status}): "
            f"see `melodeon logs {ended.name}`, or `melodeon ps` for jobs that run"
        ) from None


def _unasked(name: str, run: Path, record: Mapping[str, object]) -> MelodeonError:
    """Why a run that goes on cannot be asked for anything."""
    if is_elsewhere(record):
        return NotFound(f"job {name!r} runs on {record['host']}: ask it there, or see `melodeon logs {run.name}`")
    if record.get("elastic"):
        return NotFound(f"job {name!r} is just starting or ending: ask again, or see `melodeon logs {run.name}`")
    return UsageError(
        f"job {name!r} runs without agents and cannot be asked for anything: start it by `melodeon run`, without "
        "--static, --assignment and --record-ops"
    )


def is_lost(record: Mapping[str, object]) -> bool:
    """Whether a run's launcher was killed, and could not write down how its run ended."""
    from melodeon.coord.marks import started

    pid = record.get("pid")
    if record.get("status") != "running" or not isinstance(pid, int) or is_elsewhere(record):
        return False
    now = started(pid)
    return now is None or record.get("pid_started") not in (None, now)  # another may have been given its number


def is_elsewhere(record: Mapping[str, object]) -> bool:
    """Whether a run is another machine's, whose folder this one sees: nothing is known of its processes here."""
    return record.get("host") not in (None, socket.gethostname())


def goes_on(run: Path) -> bool:
    """Whether a run's record says that it runs, and its launcher is there to end it."""
    record = read_json(run / "run.json")
    return record.get("status") == "running" and not is_lost(record)


def find_entry(name: str | None) -> "Entry":
    """A running job by its id, the beginning of it, or the id of the cluster's job that it is a start of."""
    from melodeon.coord import registry

    running = registry.entries()
    if name is None:  # the newest of those that a person has started here, where there is one
        chosen = [entry for entry in running if clusters_job(entry) is None]
    else:
        chosen = _of_this_cluster([entry for entry in running if clusters_job(entry) == name])
    return chosen[-1] if chosen else registry.find(name)


def _find_running(name: str | None, runs_root: str) -> "Entry":
    """`find_entry`, but not a job that only begins with a name which is the whole of an ended run's."""
    from melodeon.coord import registry

    entry = find_entry(name)
    known = (None, registry.NEWEST, entry.id, clusters_job(entry))
    whole = None if name is None or name in known else _named(name, runs_root)
    if whole is not None and whole.resolve() != Path(entry.run_dir):
        raise NotFound(f"job {name!r} does not run on this machine")
    return entry


def _of_this_cluster(entries: "list[Entry]") -> "list[Entry]":
    """Of jobs that several clusters call the same, those of the one that commands speak with."""
    from melodeon.control import address

    states = {Path(entry.run_dir).parents[2] for entry in entries}
    if len(states) < 2:
        return entries
    named = os.environ.get(STATE)
    service = address.find(Path(named) if named else None)
    own = [e for e in entries if service is not None and Path(e.run_dir).parents[2] == Path(service.state).resolve()]
    if not own:
        listed = ", ".join(sorted(map(str, states)))
        raise UsageError(f"clusters in {listed} have this job: name one by {STATE}, or the run's folder")
    return own


def clusters_job(entry: "Entry") -> str | None:
    """The job of the cluster that a running job is a start of."""
    folder = Path(entry.run_dir).parent
    is_start = entry.id.rpartition(".")[0] == folder.name and folder.parent.name == "jobs"
    return folder.name if is_start and (folder / "spec.json").is_file() else None


def require_own(entry: "Entry", instead: str) -> None:
    """Refuse to change a cluster's job behind its back."""
    name = clusters_job(entry)
    if name is not None:
        raise UsageError(f"job {name} is the cluster's, which would undo this: use `melodeon {instead} {name}`")


def _say_if_clusters(name: str) -> None:
    """A job of the cluster that does not run now is told from one that never was."""
    found = _clusters(name)
    if found is None:
        return
    raise NotFound(
        f"job {found.id} of the cluster is {found.phase.value} and has no workers here: see `melodeon show {found.id}`"
    )


def attach(name: str | None, *, instead: str | None = None) -> "JobHandle":
    """Speak with the running job that is meant; a change refuses the cluster's, and names the command `instead`."""
    from melodeon.coord import client

    entry = find_job(name)
    if instead is not None:
        require_own(entry, instead)
    return client.JobHandle(entry)


def find_folder(name: str | None, runs_root: str) -> Path:
    """The folder of a running job or of a run that has ended; without a name the newest, one that runs first."""
    try:
        return Path(_find_running(name, runs_root).run_dir)
    except NotFound as error:
        ended = find_ended(name, runs_root) or (None if name is None else _clusters_run(name))
        if ended is not None:
            return ended
        if name is None:
            raise NotFound(f"no job runs on this machine, and {runs_root} holds no run: name a run's folder") from None
        raise NotFound(f"{name!r} is no run under {runs_root}, and {error}") from None


def _clusters_run(name: str) -> Path | None:
    """The folder of the newest start of a cluster's job, where it is on this machine."""
    found = _clusters(name)
    return Path(found.run_dir) if found is not None and found.run_dir and Path(found.run_dir).is_dir() else None


def _clusters(name: str) -> "JobInfo | None":
    """The cluster's job of this name, where there is a cluster that knows and answers."""
    cluster = there()
    if cluster is not None:
        with cluster, contextlib.suppress(MelodeonError):
            return cluster.job(name)
    return None


def on_cluster(name: str | None, runs_root: str = RUNS_ROOT, *, local: bool) -> "JobInfo | None":
    """The cluster's job of this name; None where it means a run of this machine, or there is no cluster.

    A whole name is meant before the beginning of another: what runs here as `b` is not the cluster's `boom-7`.
    """
    cluster = None if local or name is None else there()
    if cluster is None or name is None:
        return None
    try:
        with cluster:
            found = cluster.job(name)
        return found if name in (found.id, found.name, "last") or not _is_called(name, runs_root) else None
    except NotFound:
        if _is_here(name, runs_root):
            return None
        raise
    except Unreachable as error:
        raise Unreachable(f"{error}; --local leaves the cluster out") from None


def has_own(runs_root: str) -> bool:
    """Whether `melodeon run` has started anything here that is still known."""
    from melodeon.coord import registry

    return any(clusters_job(entry) is None for entry in registry.entries()) or bool(runs_in(runs_root))


def _is_here(name: str, runs_root: str) -> bool:
    from melodeon.coord import registry

    try:
        registry.find(name)
    except NotFound:
        return find_ended(name, runs_root) is not None
    return True


def _is_called(name: str, runs_root: str) -> bool:
    """Whether a running job, or a run that is kept there, has exactly this id."""
    from melodeon.coord import registry

    kept = Path(runs_root) / name / "run.json"
    return any(entry.id == name for entry in registry.entries()) or (name == kept.parent.name and kept.is_file())


def find_ended(name: str | None, runs_root: str) -> Path | None:
    """A run's folder by its path, its id or the beginning of it; None, or `last`, takes the newest."""
    from melodeon.coord import registry

    runs = runs_in(runs_root)
    if name is None or name == registry.NEWEST:
        return runs[-1] if runs else None
    if (folder := _named(name, runs_root)) is not None:
        return folder
    matching = [run for run in runs if run.name.startswith(name)]
    if len(matching) > 1:
        listed = ", ".join(run.name for run in matching[-5:])
        more = f" and {len(matching) - 5} more" if len(matching) > 5 else ""
        raise NotFound(f"run {name!r} could be any of {listed}{more}: give more letters of its id")
    return matching[0] if matching else None


def _named(name: str, runs_root: str) -> Path | None:
    """The run's folder that a path, or a whole id, names."""
    folders = (Path(name), Path(runs_root) / name)
    return next((folder for folder in folders if (folder / "run.json").is_file()), None)


def runs_in(runs_root: str) -> list[Path]:
    """The folders of all runs there, oldest first."""
    found = [path.parent for path in Path(runs_root).glob("*/run.json")]
    return sorted(found, key=lambda run: (str(read_json(run / "run.json").get("created", "")), run.name))


def from_here(path: str | Path) -> str:
    """A path as one would type it: relative where it is below this folder."""
    whole, here = Path(path).resolve(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)


def read_json(path: Path) -> dict[str, object]:
    """One JSON object, or nothing where there is none (yet)."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def read_lines(path: Path) -> Iterator[Mapping[str, object]]:
    """The objects of a file of JSON lines; a torn last line, and a file that is not there, are no error."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError:
        return
    with file:
        for line in file:
            if row := parse_line(line):
                yield row


def parse_line(line: str | bytes) -> Mapping[str, object]:
    """One line of JSON as an object; empty where it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
