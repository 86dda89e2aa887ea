"""Simulations side by side: one process a core, each taking the next task when it is done with one.

A task goes to a worker process and comes back as figures over a pipe; the record, which is large, is written by the
worker itself. A worker that dies is noticed by its pipe; on Ctrl-C all are ended.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from melodeon.cli.simtraces import parse_cluster, policy_of
from melodeon.core.errors import Cancelled, MelodeonError, UsageError

if TYPE_CHECKING:
    from melodeon.core.jobs import JobSpec

PARTS = 50
"""How often a simulation says how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One trace under one policy."""

    number: int = 0
    trace: int = 0
    """Which of the traces."""
    trace_name: str = ""
    policy: str = ""
    cluster: str
    seed: int
    slot_s: float
    pauses: bool = True
    failures: tuple[float, float] | None = None
    """Mean seconds until a node fails, and until it is repaired."""
    save: str | None = None
    """The result file to write."""
    tell: bool = False
    """Whether anybody looks at the progress."""


@dataclass(frozen=True, slots=True)
class Done:
    """The figures of a task, or why there are none."""

    task: Task
    values: dict[str, int | float | None] = field(default_factory=dict)
    problem: str | None = None
    exit_code: int = 0


Jobs = Sequence["JobSpec"]
Tell = Callable[[Task, int], None]
"""A task, and how many of its jobs were submitted by now."""


def run_all(tasks: Sequence[Task], traces: Sequence[Jobs], *, processes: int, tell: Tell) -> list[Done]:
    """Every task's figures, in order."""
    processes = min(processes, len(tasks))
    desk = _Desk(tasks, traces, tell)
    try:
        if processes <= 1:
            return [simulate(task, traces[task.trace], tell) for task in tasks]
        for _ in range(processes):
            desk.hire()
        return desk.finish()
    except KeyboardInterrupt:
        raise Cancelled("stopped on request; results of simulations that were done are kept by --save") from None
    finally:
        desk.close()


def simulate(task: Task, jobs: Jobs, tell: Tell) -> Done:
    """One simulation; what goes wrong in it is told, not raised, so that others go on."""
    try:
        return Done(task, _figures(task, jobs, tell))
    except MelodeonError as error:
        return Done(task, problem=str(error), exit_code=error.exit_code)
    except AssertionError as error:
        # A policy broke a rule of the round: that is ours to repair, and no reason to lose the other policies' figures.
        return Done(task, problem=f"{task.policy} broke a rule on {task.trace_name}: {error}", exit_code=1)


def _figures(task: Task, jobs: Jobs, tell: Tell) -> dict[str, int | float | None]:
    from melodeon.core.overhead import Overheads
    from melodeon.sim.engine import SimConfig, Simulation
    from melodeon.sim.incidents import Failures
    from melodeon.sim.metrics import summarize
    from melodeon.sim.record import record
    from melodeon.sim.results import write_result

    cluster = parse_cluster(task.cluster)
    failures: Failures | None = None
    if task.failures is not None:
        up_s, repair_s = task.failures
        least_s = max(60.0, task.slot_s)
        if min(task.failures) < least_s:
            raise UsageError(
                f"--failures {up_s:g}s,{repair_s:g}s are shorter than {least_s:g} s, a minute or the slot, so that no "
                "job would get on: give longer times, as 30d,2h"
            )
        stretch_s = jobs[-1].submit_s + 30 * 86_400.0
        failures = Failures(cluster, mean_up_s=up_s, mean_repair_s=repair_s, stretch_s=stretch_s, seed=task.seed)
    config = SimConfig(
        cluster=cluster,
        slot_s=task.slot_s,
        overheads=Overheads() if task.pauses else Overheads.none(),
        failures=failures,
        record=task.save is not None,
    )
    simulation = Simulation(config, jobs, policy_of(task.policy))
    if task.tell:
        for number in range(0, len(jobs), max(1, len(jobs) // PARTS)):
            simulation.run(until_s=jobs[number].submit_s)
            tell(task, number)
    result = simulation.run().result()
    if task.save is not None:
        kept = record(result, trace=task.trace_name, policy=task.policy, cluster=task.cluster, seed=task.seed)
        write_result(kept, Path(task.save))
        return kept.metrics.values
    return asdict(summarize(result))


class _Desk:
    """Hands tasks to processes and takes their figures back."""

    def __init__(self, tasks: Sequence[Task], traces: Sequence[Jobs], tell: Tell) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._waiting = list(reversed(tasks))
        self._traces, self._tell = traces, tell
        self._workers: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, Task] = {}
        self._seen: dict[Connection, set[int]] = {}
        self._done: dict[int, Done] = {}
        self._order = [task.number for task in tasks]

    def hire(self) -> None:
        """Start a process, with its first task."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        with _without_ctrl_c():
            process.start()
        theirs.close()
        self._workers[ours], self._seen[ours] = process, set()
        self._hand(ours)

    def finish(self) -> list[Done]:
        """Wait until every task is done."""
        while self._busy:
            for ready in wait(list(self._busy)):
                assert isinstance(ready, Connection)
                self._hear(ready)
        return [self._done[number] for number in self._order]

    def close(self) -> None:
        """End every process."""
        for ours, process in self._workers.items():
            ours.close()
            process.terminate()
            process.join()

    def _hand(self, ours: Connection) -> None:
        self._busy.pop(ours, None)
        if not self._waiting:
            return
        task = self._waiting.pop()
        self._busy[ours] = task
        # A trace goes to each process once; it is the largest part of a task.
        fresh = task.trace not in self._seen[ours]
        self._seen[ours].add(task.trace)
        with contextlib.suppress(ConnectionError):  # it has died meanwhile, which is heard like any other death
            ours.send((task, tuple(self._traces[task.trace]) if fresh else None))

    def _hear(self, ours: Connection) -> None:
        task = self._busy[ours]
        try:
            said = ours.recv()
        except (EOFError, ConnectionError):
            process = self._workers.pop(ours)
            ours.close()
            process.join()
            hint = "is memory short?" if process.exitcode == -signal.SIGKILL else "its own words stand above"
            problem = f"the process of {task.policy} on {task.trace_name} ended with {process.exitcode}: {hint}"
            self._done[task.number] = Done(task, problem=problem, exit_code=1)
            self._busy.pop(ours)
            if self._waiting:
                self.hire()
            return
        if isinstance(said, Done):
            self._done[task.number] = said
            self._tell(task, len(self._traces[task.trace]))
            self._hand(ours)
        else:
            self._tell(task, int(said))


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process that is started in here never hears Ctrl-C, not even while it imports: its parent ends it."""
    resource_tracker.ensure_running()  # starting it would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(theirs: Connection) -> None:
    """A worker process: take tasks until the pipe ends."""
    traces: dict[int, Jobs] = {}
    while True:
        try:
            task, jobs = theirs.recv()
        except (EOFError, ConnectionError):
            return
        if jobs is not None:
            traces[task.trace] = jobs
        theirs.send(simulate(task, traces[task.trace], lambda _, count: theirs.send(count)))
