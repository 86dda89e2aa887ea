"""What commands that train share: the launch that their options describe, and what is said when a run fails."""

import sys
from pathlib import Path

from melodeon.backends.machine import require_torch
from melodeon.backends.runs import Report
from melodeon.cli.checks import require_level, require_order, require_script
from melodeon.core.launch import Launch

TAIL_LINES = 20
"""How much of a failed worker's log is shown where its output was not."""


def checked_launch(
    script: str, *, determinism: str, threads: int | None, order: str | None, steps: int | None, runs_root: str
) -> Launch:
    """The launch that every worker of a run starts from, once everything that can be checked beforehand is."""
    require_order(order)
    require_script(script)
    launch = Launch(
        determinism=require_level(determinism), threads=threads, order=order, max_steps=steps, runs_root=runs_root
    )
    require_torch()
    return launch


def explain_failure(report: Report, *, shown: bool) -> None:
    """Say on stderr why a run failed; `shown`: the shown worker's output has been seen as it came."""
    worker = report.outcome.worker
    if worker is None:
        print(f"error: {report.outcome.reason}", file=sys.stderr)
        return
    log = report.run_dir / f"worker-{worker}.err"
    said = f"error: {report.outcome.reason}"
    # Where the shown worker's last line was this very sentence, only the log is news.
    seen = shown and _tail(report.run_dir / f"worker-{report.shown}.err")[-1:] == [said]
    if seen:
        print(f"log: {log}", file=sys.stderr)
        return
    for line in [] if shown and worker == report.shown else _tail(log):
        if line != said:
            print(f"[worker {worker}] {line}", file=sys.stderr)
    print(f"{said} (log: {log})", file=sys.stderr)


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
