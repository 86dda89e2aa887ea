"""`python -m examples.demo`: a CNN and a GPT, trained in every way, must come out as the same bits.

    order tree   1, 2 and 3 workers                                    agree with each other
    order ddp    1, 2 and 3 workers, and stock DDP on 4 processes      agree with each other

The stock runs are `train_ddp.py` under torchrun: they import nothing of Melodeon. Compared is what each script prints
at its end, the SHA-256 of all parameters and buffers, and among our own runs the digest of the whole state (optimizer,
schedule, position in the data, random states) as well. Ends with exit code 6 if anything differs.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from melodeon.backends.elastic import Elastic
from melodeon.backends.local import Event
from melodeon.backends.runs import Request, perform
from melodeon.backends.warmth import Warmth
from melodeon.coord.master_state import JobConfig
from melodeon.core.determinism import level_env
from melodeon.core.errors import Cancelled, MelodeonError, NotBitwise
from melodeon.core.launch import Launch

HERE = Path(__file__).resolve().parent
VIRTUAL_WORKERS = 4
WORKERS = (1, 2, 3)
LEVEL = "D1"
WIDTH = 80

_EPOCH = re.compile(r"epoch (\d+)/(\d+): (.+)")
_DIGEST = re.compile(r"digest ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Plan:
    """One training run to make."""

    model: str
    order: str
    num_workers: int
    """0 stands for stock DistributedDataParallel on VIRTUAL_WORKERS processes."""

    @property
    def label(self) -> str:
        """Who trains."""
        if self.num_workers == 0:
            return f"{VIRTUAL_WORKERS} DDP processes"
        return f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"


@dataclass(slots=True)
class Seen:
    """What a run has said so far."""

    result: str = ""
    """What its model can do: accuracy or loss."""
    model: str = ""
    """The digest of parameters and buffers."""
    state: str | None = None
    """The digest of the whole state; a stock run has none."""
    seconds: float = 0.0
    tail: list[str] = field(default_factory=list)

    def line(self, text: str) -> float | None:
        """Take a line of output; returns the share of epochs done where it says so."""
        self.tail = [*self.tail[-19:], text]
        if match := _DIGEST.fullmatch(text.strip()):
            self.model = match[1]
        if match := _EPOCH.fullmatch(text.strip()):
            self.result = match[3]
            return int(match[1]) / int(match[2])
        return None


OnShare = Callable[[float], None]
"""Told how much of a run is done, from 0 to 1."""


def plans(models: Iterable[str] = ("cnn", "gpt")) -> list[Plan]:
    """All runs, in the order in which they are made and shown."""
    return [
        Plan(model, order, num_workers)
        for model in models
        for order in ("tree", "ddp")
        for num_workers in (*WORKERS, *((0,) if order == "ddp" else ()))
    ]


def agree(runs: Sequence[Seen]) -> bool:
    """Whether runs that must agree do: one model, and one whole state among those that have one."""
    models, states = {run.model for run in runs}, {run.state for run in runs if run.state is not None}
    return len(models) == 1 and "" not in models and len(states) <= 1


# -- making one run --------------------------------------------------------------------------------------------------


def train(plan: Plan, options: Sequence[str], on_share: OnShare, zygote: str = "") -> Seen:
    """Make one run; `zygote` names a process that has imported torch, for ours to be forked of."""
    started = time.monotonic()
    if plan.num_workers == 0:
        seen = _train_stock(plan, options, on_share)
    else:
        seen = _train_ours(plan, options, on_share, zygote)
    seen.seconds = time.monotonic() - started
    if not seen.model:
        raise MelodeonError(f"{plan.model} on {plan.label} printed no digest: its last lines were {seen.tail[-3:]}")
    return seen


def _train_ours(plan: Plan, options: Sequence[str], on_share: OnShare, zygote: str) -> Seen:
    """What `melodeon run --workers N train_melodeon.py --order ...` does, without importing torch each time."""
    seen, total = Seen(), 0

    def on_event(event: Event) -> None:
        nonlocal total
        step, steps = event.get("step"), event.get("total_steps")
        if isinstance(steps, int):
            total = steps
        if isinstance(step, int) and total:
            on_share(step / total)

    def on_output(_: str, data: bytes) -> None:
        for text in data.decode(errors="replace").splitlines():
            seen.line(text)

    args = ["--virtual-workers", str(VIRTUAL_WORKERS), "--order", plan.order, *options]
    request = Request(
        script=str(HERE / plan.model / "train_melodeon.py"),
        args=args,
        launch=Launch(num_workers=plan.num_workers, determinism=LEVEL),
        elastic=Elastic(job=JobConfig(job="", workers=plan.num_workers), zygote=zygote),
    )
    report = perform(request, on_event=on_event, on_output=on_output)
    if not report.outcome.ok:
        error = MelodeonError(f"{plan.model} on {plan.label}: {report.outcome.reason} (logs: {report.run_dir})")
        error.exit_code = report.outcome.exit_code
        raise error
    seen.state = report.digest
    return seen


def _train_stock(plan: Plan, options: Sequence[str], on_share: OnShare) -> Seen:
    """What `torchrun --nproc-per-node 4 train_ddp.py` does."""
    seen = Seen()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={VIRTUAL_WORKERS}"),
        *(str(HERE / plan.model / "train_ddp.py"), *options),
    ]
    env = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", **os.environ, **level_env(LEVEL)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            for text in process.stdout:
                share = seen.line(text.rstrip("\n"))
                if share is not None:
                    on_share(share)
        except KeyboardInterrupt:
            process.terminate()  # torchrun then ends its processes
            raise Cancelled("the demo was stopped on request") from None
    if process.returncode != 0:
        log = "\n".join(seen.tail)
        raise MelodeonError(f"{plan.model} on {plan.label} ended with exit code {process.returncode}:\n{log}")
    return seen


@contextmanager
def torch_imported() -> Iterator[str]:
    """A process that has imported torch once for all; the name by which runs find it."""
    with tempfile.TemporaryDirectory(prefix="melodeon-demo-") as folder:
        warmth = Warmth(os.environ, Path(folder) / "zygote.log")
        try:
            yield warmth.name()
        finally:
            warmth.close()


# -- showing it ------------------------------------------------------------------------------------------------------


def train_all(todo: Sequence[Plan], options: Sequence[str], console: Console) -> dict[Plan, Seen]:
    """Make every run, with bars on a terminal and a line a run elsewhere."""
    done: dict[Plan, Seen] = {}
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[digest]}", style="cyan"),
        console=console,
        disable=not console.is_terminal,
    )
    with bars, torch_imported() as zygote:
        for plan in todo:
            name = f"{plan.model} {plan.order:4} {plan.label:15}"
            task = bars.add_task(name, total=1.0, digest="")

            def show(share: float, task: object = task) -> None:
                bars.update(task, completed=share)  # type: ignore[arg-type]

            seen = done[plan] = train(plan, options, show, zygote)
            bars.update(task, completed=1.0, digest=seen.model[:12])
            bars.stop_task(task)
            if not console.is_terminal:
                print(f"{name} {seen.seconds:5.1f} s  {seen.model[:12]}", flush=True)
    return done


def table(done: dict[Plan, Seen]) -> tuple[Table, list[str]]:
    """The digests side by side, and the groups of runs that do not agree."""
    grid = Table(
        "model", "order", "trained by", "time", "result", "digest", "", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    wrong: list[str] = []
    groups = list(dict.fromkeys((plan.model, plan.order) for plan in done))
    for model, order in groups:
        rows = {plan: seen for plan, seen in done.items() if (plan.model, plan.order) == (model, order)}
        good = agree(list(rows.values()))
        if not good:
            wrong.append(f"{model} in order {order}")
        for plan, seen in rows.items():
            mark = "[green]equal[/]" if good else "[red]differ[/]"
            cells = (model, order, plan.label, f"{seen.seconds:.1f} s", seen.result, seen.model[:12], mark)
            grid.add_row(*cells, end_section=plan == list(rows)[-1])
    return grid, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Train in every way; compare the bits."
    )
    parser.add_argument("--model", choices=("cnn", "gpt"), action="append", help="only this one")
    parser.add_argument("--epochs", type=int, default=2, help="of every run; 2 keeps the whole under 3 minutes")
    args = parser.parse_args(arguments)
    options = ["--epochs", str(args.epochs)]
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    todo = plans(args.model or ("cnn", "gpt"))
    console.print(
        f"{len(todo)} runs, each of {VIRTUAL_WORKERS} virtual workers; the bits must not depend on who runs them.\n"
    )
    started = time.monotonic()
    try:
        done = train_all(todo, options, console)
        grid, wrong = table(done)
        console.print(grid, width=min(WIDTH, console.width))
        if wrong:
            raise NotBitwise(f"digests differ for {' and '.join(wrong)}: `melodeon doctor` checks this machine")
    except MelodeonError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    console.print(f"All digests agree: {len(done)} runs in {minutes} min {seconds} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
