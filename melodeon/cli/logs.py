"""`melodeon logs`: what the workers of a job print, from another terminal, during the run or after it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from melodeon.cli.cluster import Local
from melodeon.cli.follow import Tail, ticks
from melodeon.cli.job import (
    RUNS_ROOT,
    Output,
    RunName,
    RunsRoot,
    find_folder,
    goes_on,
    has_own,
    is_elsewhere,
    on_cluster,
    read_json,
    wants_json,
)
from melodeon.cli.logs_cluster import show_logs
from melodeon.cli.options import MOST
from melodeon.cli.output import mute, print_json
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.text import harmless as harmless

STREAMS = {"stdout": "log", "stderr": "err"}
"""What a worker prints, and how the names of the files that take it end."""


def logs(
    job: RunName = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    worker: Annotated[str, typer.Option(help="A worker's number, or all.")] = "all",
    tail: Annotated[int | None, typer.Option(help="Only the last N lines of each worker and stream.")] = None,
    local: Local = False,
    runs_root: RunsRoot = RUNS_ROOT,
    output: Output = "table",
) -> None:
    """Print what a job's workers have printed.

    Several workers' lines are marked with the worker; what went to stderr follows what went to stdout, as far as both
    are there when looked at. On a terminal, control characters are made harmless; of a job of the cluster, always.
    """
    as_json = wants_json(output)
    if tail is not None and tail < 0:
        raise UsageError(f"--tail {tail} is no number of lines: choose 0 or more")
    wanted = _wanted(worker)
    try:
        name = "last" if job is None and not has_own(runs_root) else job
        if (found := on_cluster(name, runs_root, local=local)) is not None:
            show_logs(found, wanted, tail, follow=follow, as_json=as_json)
        else:
            _show_local(find_folder(job, runs_root), wanted, tail, follow=follow, as_json=as_json)
    except KeyboardInterrupt:
        pass  # how a person ends following
    except BrokenPipeError:
        mute(sys.stdout)


def _show_local(folder: Path, wanted: int | None, tail: int | None, *, follow: bool, as_json: bool) -> None:
    found = log_files(folder, wanted)
    if not found and not follow:
        known = sorted(log_files(folder, None))
        has = f"it has logs of workers {', '.join(map(str, known))}" if known else "none of its workers has printed"
        raise NotFound(
            f"run {folder.name} has no log of {'any worker' if wanted is None else f'worker {wanted}'}: {has}"
        )
    shower = _Shower(as_json=as_json, marked=wanted is None and (follow or len(found) > 1))
    _show(folder, wanted, tail, shower, follow=follow)


def log_files(folder: Path, worker: int | None) -> dict[int, dict[str, Path]]:
    """Worker -> stream -> its file, in the run's folder."""
    found: dict[int, dict[str, Path]] = {}
    for stream, end in STREAMS.items():
        for path in folder.glob(f"worker-*.{end}"):
            number = path.stem.removeprefix("worker-")
            if number.isdigit() and worker in (None, int(number)):
                found.setdefault(int(number), {})[stream] = path
    return dict(sorted(found.items()))


def _wanted(worker: str) -> int | None:
    if worker == "all":
        return None
    if not (worker.isascii() and worker.isdigit()) or len(worker) > len(str(MOST)):
        raise UsageError(f"--worker {worker!r} is no worker: give its number, such as 0, or all")
    return int(worker)


def _show(folder: Path, worker: int | None, tail: int | None, shower: "_Shower", *, follow: bool) -> None:
    tails: dict[Path, Tail] = {}
    record = read_json(folder / "run.json")
    pid = None if is_elsewhere(record) else record.get("pid")

    def is_over() -> bool:
        return not follow or not goes_on(folder)

    first = True
    for more in ticks(is_over, pid if isinstance(pid, int) else None):
        for number, files in log_files(folder, worker).items():
            for stream, path in files.items():
                # Of a worker that comes later, everything is news.
                reader = tails.setdefault(path, Tail(path, keep=tail if first else None))
                for line in reader.lines(last=not more):
                    shower.show(number, stream, line)
        first = False
        shower.flush()


class _Shower:
    """Prints lines as they are asked for."""

    def __init__(self, *, as_json: bool, marked: bool) -> None:
        self._as_json, self._marked = as_json, marked
        self._is_terminal = sys.stdout.isatty()

    def show(self, worker: int, stream: str, line: bytes) -> None:
        """One line of one worker."""
        text = line.decode(errors="replace")
        if self._as_json:
            print_json({"worker": worker, "stream": stream, "line": text})
            return
        mark = f"[worker {worker}] " if self._marked else ""
        if self._is_terminal:
            print(mark + harmless(text))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(mark.encode() + line + b"\n")

    def flush(self) -> None:
        """Let a reader see it."""
        sys.stdout.flush()
