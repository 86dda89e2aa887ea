"""`melodeon scan`: which operators of a model stand against a determinism level, by module path."""

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from melodeon.backends.machine import require_torch
from melodeon.backends.runs import Request, perform
from melodeon.cli.checks import require_script
from melodeon.cli.job import RUNS_ROOT, RunsRoot
from melodeon.cli.options import Args, Json, Script
from melodeon.cli.output import print_json, print_table, print_wrapped
from melodeon.cli.progress import choose
from melodeon.cli.training import explain_failure
from melodeon.cli.verify_runs import make_stamp
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.optable import CAUSES, Assessment, Device, Finding, assess

LEVELS = ("D1", "D2")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")


def scan(
    script: Script,
    args: Args = None,
    device: Annotated[str | None, typer.Option(help="Judge for cpu or cuda; else where the model is.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List the pinned operators too.")] = False,
    runs_root: RunsRoot = RUNS_ROOT,
    json: Json = False,
) -> None:
    """List the operators of SCRIPT whose bits depend on the device.

    Runs one step in one worker. What follows SCRIPT goes to the script.
    """
    if device is not None and device not in DEVICES:
        raise UsageError(f"--device {device} is not known: choose one of {', '.join(DEVICES)}")
    require_script(script)
    require_torch("a scan")
    rows = _run(script, args or [], runs_root)
    found = assess(rows, "cuda" if (device or _where(rows)) == "cuda" else "cpu")
    if json:
        print_json(_as_json(found, script))
    else:
        _show(found, everything=everything)


def _run(script: str, args: Sequence[str], runs_root: str) -> list[dict[str, Any]]:
    name = f"{make_stamp()}-scan"
    # The one step must not become the script's newest checkpoint.
    own = str((Path(runs_root) / name / "checkpoints").resolve())
    launch = Launch(scan=True, max_steps=1, resume=False, runs_root=runs_root, checkpoint_dir=own)
    display = choose(quiet=True, stdout_to_stderr=True)
    request = Request(script=script, args=args, launch=launch, name=name, command=["melodeon", *sys.argv[1:]])
    try:
        report = perform(request, on_event=display.event, on_output=display.output)
    finally:
        display.close()
    if not report.outcome.ok:
        explain_failure(report, shown=True)
        raise typer.Exit(report.outcome.exit_code)
    return _read(report.run_dir / "scan.json", script)


def _read(path: Path, script: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UsageError(
            f"{script} ended before a step was done, so there is nothing to list: "
            "it must call melodeon.join() and train at least one step"
        )
    rows: list[dict[str, Any]] = jsonlib.loads(path.read_text(encoding="utf-8"))
    if not rows:
        raise UsageError(f"{script} ran no operator in its first step: wrap the model and train it in the loop")
    return rows


def _where(rows: Sequence[dict[str, Any]]) -> str:
    """The kind of device that most of the time went to."""
    times: dict[str, float] = {}
    for row in rows:
        times[row["device"]] = times.get(row["device"], 0.0) + row["time_s"]
    return max(times, key=lambda kind: times[kind])


def _show(found: Assessment, *, everything: bool) -> None:
    for level in LEVELS:
        print_wrapped(found.verdict(level))
    shown = found.findings if everything else tuple(finding for finding in found.findings if finding.stops)
    pinned = sum(finding.pinned for finding in found.findings)
    if shown:
        rows = [_row(finding) for finding in shown]
        print_table(["module", "operator", "calls", "time", "stops", "cause"], rows)
        _explain(shown)
    if pinned and not everything:
        print(f"{pinned} more rows depend on the device and are pinned; --all lists them.")
    exact = found.num_operators - len(found.findings)
    print(f"{exact} of {found.num_operators} rows give the same bits anywhere.")


def _row(finding: Finding) -> list[str]:
    operator = finding.op.removeprefix("aten.").removesuffix(".default")
    causes = ", ".join(cause.name for cause in finding.causes)
    module = finding.module or "-"
    return [module, operator, str(finding.count), f"{finding.share:.1%}", finding.stops or "pinned", causes]


def _explain(shown: Sequence[Finding]) -> None:
    names = {cause.name for finding in shown for cause in finding.causes}
    for name, cause in CAUSES.items():
        if name in names:
            what = cause.fix if cause.open else f"pinned by {cause.pinned_by}"
            print_wrapped(f"{name}: {cause.why}; {what}.")


def _as_json(found: Assessment, script: str) -> dict[str, object]:
    return {
        "script": script,
        "device": found.device,
        "verdicts": {level: {"holds": not found.stopping(level), "why": found.verdict(level)} for level in LEVELS},
        "num_operators": found.num_operators,
        "operators": [
            {
                "module": finding.module,
                "op": finding.op,
                "count": finding.count,
                "share": round(finding.share, 6),
                "stops": finding.stops or None,
                "pinned": finding.pinned,
                "causes": [
                    {
                        "name": cause.name,
                        "why": cause.why,
                        "pinned_by": cause.pinned_by or None,
                        "fix": cause.fix or None,
                    }
                    for cause in finding.causes
                ],
            }
            for finding in found.findings
        ],
    }
