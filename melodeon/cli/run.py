"""`melodeon run`: a training script on any number of local workers.

The function of that name is long because every option, which typer reads from it, is a line.
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from melodeon.backends.runs import Report, Request, perform
from melodeon.cli.batches import read_curves, read_history
from melodeon.cli.options import MOST, Args, Determinism, Epochs, Order, Script, Steps, Threads, Until
from melodeon.cli.output import print_json, said_to
from melodeon.cli.progress import choose
from melodeon.cli.training import checked_launch, explain_failure
from melodeon.core.assignment import Assignment
from melodeon.core.determinism import DEFAULT
from melodeon.core.errors import UsageError
from melodeon.core.launch import Launch
from melodeon.core.text import counted

if TYPE_CHECKING:
    from melodeon.backends.elastic import Elastic


Curves = dict[int, dict[int, float]]


class Watch(NamedTuple):
    """When a worker is replaced."""

    restarts: int
    factor: float
    patience: int


class Where(NamedTuple):
    """What the job's agents are, and where they meet."""

    agents: int
    store: str | None
    listen: str | None


OF_AGENTS = ("restarts", "agents", "listen", "store", "straggler", "patience")
"""Parameters that mean something only where there are agents."""


def run(
    context: typer.Context,
    script: Script,
    args: Args = None,
    workers: Annotated[int | None, typer.Option(max=MOST, help="How many worker processes; 1 by default.")] = None,
    assignment: Annotated[str | None, typer.Option(help="Virtual workers per worker, like 3,1,4.")] = None,
    determinism: Determinism = None,
    threads: Threads = None,
    order: Order = None,
    steps: Steps = None,
    epochs: Epochs = None,
    until: Until = None,
    receipt_every: Annotated[int | None, typer.Option(min=0, help="Steps between receipt entries; 0: end.")] = None,
    record_ops: Annotated[bool, typer.Option("--record-ops", help="Record every operator, for `diff`.")] = False,
    record_states: Annotated[bool, typer.Option("--record-states", help="Record every tensor's digest.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Without agents: a fixed set of workers.")] = False,
    restarts: Annotated[int, typer.Option(min=0, max=MOST, help="How many lost workers to replace.")] = 3,
    agents: Annotated[int, typer.Option(min=1, max=MOST, help="Agents on this machine; each plays a node.")] = 1,
    listen: Annotated[str | None, typer.Option(help="This machine's address, for other machines' agents.")] = None,
    store: Annotated[str | None, typer.Option(help="etcd's URL, as the coordination store.")] = None,
    straggler: Annotated[float, typer.Option(min=0, help="So much slower than the others is slow; 0: off.")] = 1.5,
    patience: Annotated[int, typer.Option(min=1, help="Steps in a row before a worker counts as slow.")] = 10,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Let the batch grow with the workers; other bits.")] = False,
    curves: Annotated[str | None, typer.Option(help="Scaling curves for --hybrid, a JSON file.")] = None,
    batch_history: Annotated[str | None, typer.Option(help="Train with the batches of this run or file.")] = None,
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Ignore existing checkpoints.")] = False,
    runs_root: Annotated[str, typer.Option(help="Where runs are kept.")] = Launch().runs_root,
    name: Annotated[str | None, typer.Option(help="The run's id.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the script's output and errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout at the end.")] = False,
) -> None:
    """Run SCRIPT on local workers; what follows it goes to the script.

    The result does not depend on --workers or --assignment, only the time does.
    """
    counts = _counts(workers, assignment)
    is_elastic = not (static or record_ops or counts)
    _require_hybrid(hybrid, curves, possible=is_elastic and not batch_history)
    if not is_elastic:
        _require_none(_given(context, OF_AGENTS))
    launch = replace(
        checked_launch(
            script,
            determinism=DEFAULT if determinism is None else determinism,
            threads=threads,
            order=order,
            steps=steps,
            runs_root=runs_root,
        ),
        num_workers=len(counts) if counts else workers or 1,
        counts=counts,
        max_epochs=epochs,
        until=_until(until),
        receipt_every=receipt_every,
        record_ops=record_ops,
        record_states=record_states,
        resume=not no_resume,
        hybrid=hybrid,
        batch_history=read_history(batch_history),
    )
    watch = Watch(restarts=restarts, factor=straggler, patience=patience)
    where = Where(agents=agents, store=store, listen=listen)
    elastic = _elastic(launch, where, watch, read_curves(curves)) if is_elastic else None
    if is_elastic and name is not None:
        _require_free(runs_root, name)
    command = ["melodeon", *sys.argv[1:]]
    request = Request(script=script, args=args or (), launch=launch, name=name, command=command, elastic=elastic)
    _finish(_perform(request, quiet=quiet, as_json=json), request, quiet=quiet, as_json=json)


def _until(text: str | None) -> str | None:
    from melodeon.core.spec import READERS

    return None if text is None else READERS["until"]("--until", text)


def _elastic(launch: Launch, where: Where, watch: Watch, curves: Curves) -> "Elastic":
    """How workers that come and go are kept."""
    from melodeon.backends.addresses import require_own
    from melodeon.backends.elastic import Elastic
    from melodeon.coord.hybrid import HybridConfig
    from melodeon.coord.master_state import JobConfig
    from melodeon.coord.store import check_address

    if where.store is not None:
        check_address(where.store)
    listen = "" if where.listen is None else require_own(where.listen, "--listen")
    job = JobConfig(
        job="",
        workers=launch.num_workers,
        agents=where.agents,
        restarts=watch.restarts,
        straggler_factor=watch.factor,
        straggler_patience=watch.patience,
        hybrid=HybridConfig(curves=curves) if launch.hybrid else None,
    )
    elastic = Elastic(job=job, agents=where.agents, listen=listen, store=where.store)
    _require_room(elastic)
    return elastic


def _require_room(elastic: "Elastic") -> None:
    """More workers than slots could only wait for other machines' agents, if those may come."""
    workers, most = elastic.job.workers, elastic.slots * elastic.agents
    if workers > most and not elastic.listen:
        slots = f"{counted(elastic.agents, 'agent')} of {elastic.slots} slots{' each' if elastic.agents > 1 else ''}"
        raise UsageError(f"--workers {workers} find no room in {slots}: start {most} at most, or give more --agents")


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Options as they were typed, without those that have their default because nobody said anything."""
    sources = {name: context.get_parameter_source(name) for name in names}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return [f"--{name} {str(context.params[name]).removesuffix('.0')}" for name in typed]


def _require_none(of_agents: Sequence[str]) -> None:
    """Refuse what would be ignored."""
    if of_agents:
        raise UsageError(
            f"a run without agents has no use for {' and '.join(of_agents)}: leave that out, or --static, "
            "--assignment and --record-ops"
        )


def _require_free(runs_root: str, name: str) -> None:
    """A name that is taken is told before the run's folder is made."""
    from melodeon.coord import registry

    registry.require_free(name, Path(runs_root) / name)


def _require_hybrid(hybrid: bool, curves: str | None, *, possible: bool) -> None:
    if (hybrid or curves is not None) and not (hybrid and possible):
        raise UsageError(
            "--hybrid changes the batch when the job grows: it goes with --curves, and not with --static, "
            "--assignment, --record-ops or --batch-history"
        )


def _counts(workers: int | None, assignment: str | None) -> tuple[int, ...] | None:
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} cannot run anything: choose at least 1")
    if assignment is None:
        return None
    counts = Assignment.parse(assignment).counts
    if workers is not None and workers != len(counts):
        raise UsageError(
            f"--workers {workers} and --assignment {assignment} disagree ({len(counts)} workers): give only one of them"
        )
    return counts


def _perform(request: Request, *, quiet: bool, as_json: bool) -> Report:
    display = choose(quiet=quiet, stdout_to_stderr=as_json)
    try:
        return perform(request, on_event=display.event, on_output=display.output)
    finally:
        display.close()


def _finish(report: Report, request: Request, *, quiet: bool, as_json: bool) -> None:
    outcome = report.outcome
    with said_to(sys.stderr):
        if not outcome.ok:
            explain_failure(report, shown=True)
        elif not quiet:
            _summarise(report, request)
        sys.stderr.flush()
    if as_json:
        with said_to(sys.stdout):
            print_json(
                {
                    "id": report.run_dir.name,
                    "run_dir": str(report.run_dir),
                    "status": outcome.status,
                    "exit_code": outcome.exit_code,
                    "reason": outcome.reason,
                    "worker": outcome.worker,
                    "num_workers": request.launch.num_workers,
                    "steps": report.steps,
                    "seconds": round(report.seconds, 3),
                    "digest": report.digest,
                }
            )
    raise typer.Exit(outcome.exit_code)


def _summarise(report: Report, request: Request) -> None:
    steps = "" if report.steps is None else f"{counted(report.steps, 'step')} in "
    lines = [f"done: {steps}{report.seconds:.1f} s"]
    if report.digest:
        lines.append(f"  digest  {report.digest}")
    lines.append(f"  run     {report.run_dir}")
    receipt = report.run_dir / "receipt.jsonl"
    if receipt.exists():
        again = ["melodeon", "verify", "--receipt", str(receipt), request.script]
        again += ["--", *request.args] if request.args else []
        lines.append(f"  next    {shlex.join(again)}")
    print("\n".join(lines), file=sys.stderr)
