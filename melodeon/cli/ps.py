"""`melodeon ps`: the cluster's jobs where there is one, the jobs of this machine, and with -a those that have ended."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli import ps_cluster
from melodeon.cli.cluster import Local
from melodeon.cli.job import RUNS_ROOT, Output, RunsRoot, clusters_job, is_lost, read_json, runs_in, wants_json
from melodeon.cli.output import fitted, print_json, print_wrapped, shortened
from melodeon.core.errors import Cancelled, MelodeonError, NotFound, Unreachable
from melodeon.viz.timeline import mappings, pauses_of, whole
from melodeon.viz.words import duration, milliseconds, number, plain

if TYPE_CHECKING:
    from melodeon.coord.registry import Entry

PATIENCE_S = 2.0
"""How long a job may take to answer before it is listed as unreachable."""

COLUMNS = ("id", "script", "step", "workers", "status", "age", "restarts left")
NUMBERS = ("step", "workers", "restarts left")
GIVES_WAY, LEAVE_OUT = "script", ("restarts left", "age", "workers", "step")
"""Where lines are too long, the script's name is cut and then these go: an id is never cut, since people copy it."""

VIEW = ("view", "assignment", "steps_per_s", "pause_s", "why")
"""What is told of the view that a running job is in; under its line in the table."""


def ps(
    all_runs: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    local: Local = False,
    runs_root: RunsRoot = RUNS_ROOT,
    output: Output = "table",
) -> None:
    """List the cluster's jobs, and those that run on this machine."""
    as_json = wants_json(output)
    found, missing = None, None
    try:
        found = None if local else ps_cluster.ask(all_jobs=all_runs)
    except Unreachable as error:
        missing = Unreachable(f"{error}; --local leaves the cluster out")
    _list(found, runs_root, all_runs=all_runs, local=local, as_json=as_json)
    if missing is not None:  # what is on this machine was told all the same
        raise missing


def _list(found: "ps_cluster.Found | None", runs_root: str, *, all_runs: bool, local: bool, as_json: bool) -> None:
    rows = running_jobs()
    if all_runs:
        listed = {row["run_dir"] for row in rows}
        rows = [row for run in runs_in(runs_root) if (row := _kept(run))["run_dir"] not in listed] + rows
    if as_json:
        print_json({"jobs": rows} | ({} if found is None else {"cluster": found.to_json()}))
        return
    if found is not None:
        found.tell()
        if rows:
            print("\nstarted by `melodeon run`:")
    if rows:
        cells = [_cells(row) for row in rows]
        head, *lines = fitted(COLUMNS, cells, numbers=NUMBERS, leave_out=LEAVE_OUT, gives_way=GIVES_WAY)
        print(head)
        for line, row in zip(lines, rows, strict=True):
            print(line, *_view_line(row), sep="\n")
    if found is None:
        alone = {} if local else ps_cluster.left_alone()
        for state, names in alone.items():
            ps_cluster.tell_left_alone(state, names)
        if not rows and not alone:
            _tell_nothing(runs_root, all_runs=all_runs)


def _tell_nothing(runs_root: str, *, all_runs: bool) -> None:
    if all_runs:
        print_wrapped(f"no job runs on this machine, and {runs_root} holds no run: start one by `melodeon run SCRIPT`")
    else:
        text = "start one by `melodeon run SCRIPT`, or see ended ones by `melodeon ps -a`"
        print_wrapped(f"no job runs on this machine: {text}")


def running_jobs() -> list[dict[str, object]]:
    """What each running job that is not the cluster's says of itself, oldest first; they are asked side by side."""
    from melodeon.coord import registry

    entries = [entry for entry in registry.entries() if clusters_job(entry) is None]
    if not entries:
        return []
    with ThreadPoolExecutor(max_workers=min(16, len(entries))) as pool:
        return [row for row in pool.map(_running, entries) if row is not None]


def _running(entry: "Entry") -> dict[str, object] | None:
    """None where the job has ended meanwhile."""
    from melodeon.coord.client import JobHandle

    record = read_json(Path(entry.run_dir) / "run.json")
    row = _row(entry.id, entry.run_dir, record, entry.created)
    try:
        status = JobHandle(entry).ask("status", timeout_s=PATIENCE_S).values
    except NotFound:
        return None
    except MelodeonError as error:
        return row | {"status": "unreachable", "reason": str(error)}
    step = whole(status.get("step"))
    members = [worker for worker in mappings(status.get("workers")) if worker.get("ranks")]
    return row | {
        "status": status.get("phase") or "running",
        "step": None if step is None or step < 0 else step,  # -1: nobody has any state yet
        "workers": len(members),
        "restarts_left": status.get("restarts_left"),
        **_newest_view(status, len(members)),
    }


def _newest_view(status: Mapping[str, object], size: int) -> dict[str, object]:
    """Of the newest view that all have entered."""
    views, rates = mappings(status.get("history")), status.get("rates")
    if not views:
        return {}
    return {
        "view": views[-1].get("generation"),
        "assignment": views[-1].get("assignment"),
        "steps_per_s": rates.get(str(size)) if isinstance(rates, Mapping) else None,
        "pause_s": max(pauses_of(views[-1]).values(), default=None),
        "why": views[-1].get("reason"),
    }


def _kept(run: Path) -> dict[str, object]:
    record = read_json(run / "run.json")
    row = _row(run.name, str(run.resolve()), record, str(record.get("created") or ""))
    if is_lost(record):
        row["status"] = "lost"
        row["workers"] = None if record.get("elastic") else row["workers"]  # it may have been resized
    elif record.get("exit_code") == Cancelled.exit_code:
        row["status"] = "stopped"
    return row


def _row(job: str, run_dir: str, record: Mapping[str, object], created: str) -> dict[str, object]:
    return {
        "id": job,
        "script": record.get("script"),
        "step": record.get("steps"),
        "workers": record.get("last_workers", record.get("num_workers")),
        "status": record.get("status") or "unknown",
        "created": created,
        "restarts_left": None,
        **dict.fromkeys(VIEW),
        "run_dir": str(Path(run_dir).resolve()),
    }


def _cells(row: Mapping[str, object]) -> Sequence[str]:
    script = row["script"]
    return (
        plain(row["id"]),
        plain(Path(str(script)).name) if script else "-",
        number(row["step"]),
        number(row["workers"]),
        plain(row["status"]),
        _age(str(row["created"])),
        number(row["restarts_left"]),
    )


def _view_line(row: Mapping[str, object]) -> list[str]:
    if row["view"] is None:
        return []
    rate, pause_s = row["steps_per_s"], row["pause_s"]
    facts = [f"view {number(row['view'])}" + (f" as {plain(row['assignment'])}" if row["assignment"] else "")]
    facts += [f"{rate:.3g} steps/s"] if isinstance(rate, float) else []
    facts += [f"pause {milliseconds(pause_s)}"] if isinstance(pause_s, float) else []
    return [shortened(f"  {', '.join(facts)}: {plain(row['why'])}")]


def _age(created: str) -> str:
    try:
        began = datetime.fromisoformat(created)
    except ValueError:
        return "-"
    now = datetime.now(UTC)
    return duration((now - (began if began.tzinfo else began.replace(tzinfo=UTC))).total_seconds())
