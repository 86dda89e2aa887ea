"""`melodeon.join()`: this process becomes a worker of its job, or a job of one worker by itself.

The order matters: the level's switches first, then the seeds, then the others; the model is built after this returns,
so it is built alike everywhere.
"""

import atexit
import contextlib
import os
import signal
import sys
import traceback
from functools import partial
from types import TracebackType
from typing import Literal

import torch

from melodeon.coord import failpoint
from melodeon.core.assignment import Assignment
from melodeon.core.errors import DefinitionError, MelodeonError, UsageError, sentence_of
from melodeon.core.launch import Launch
from melodeon.runtime import determinism as levels
from melodeon.runtime import lifeline, preemption
from melodeon.runtime.course import Course
from melodeon.runtime.engine import Engine
from melodeon.runtime.feed import lost_loader_process
from melodeon.runtime.finite import NanPolicy
from melodeon.runtime.group import Group
from melodeon.runtime.job import Job
from melodeon.runtime.journal import Journal
from melodeon.runtime.link import Link
from melodeon.runtime.memory import keep_freed
from melodeon.runtime.openfiles import flush_open_files
from melodeon.runtime.random_streams import seed_all
from melodeon.runtime.settings import Order, Settings
from melodeon.runtime.stock import StockEngine


def join(
    *,
    virtual_workers: int | None = None,
    seed: int = 0,
    order: Order = "tree",
    determinism: Literal["D0", "D1", "D2"] | None = None,
    threads: int | None = None,
    nan: NanPolicy = "raise",
    device: str | torch.device | None = None,
    log_every: int = 10,
    receipt_every: int | None = None,
    find_unused_parameters: bool = False,
) -> Job:
    """Become a worker of the job that the launcher describes, or a job of one worker.

    `virtual_workers`, `seed`, `order`, `determinism` and `threads` define the result; how many workers share the job
    does not. `virtual_workers` may be left to the launcher.
    """
    launch = Launch.from_env(os.environ) or Launch()
    atexit.register(flush_open_files)  # first, so that it comes last
    journal = Journal(launch)
    hook = _ErrorHook(journal, launch)  # first of all: from here on an error ends the process with one sentence
    if launch.lifeline_fd is not None:
        lifeline.watch(launch.lifeline_fd)
    link = _link(launch, journal)  # before anything can be refused: who listens hears the sentence and its exit code
    virtual_workers = _virtual_workers(launch, virtual_workers)
    settings = Settings(
        virtual_workers=virtual_workers,
        seed=seed,
        order=launch.order or order,
        nan=nan,
        log_every=log_every,
        receipt_every=receipt_every if launch.receipt_every is None else launch.receipt_every,
        find_unused_parameters=find_unused_parameters,
    )
    assignment = _assignment(launch, virtual_workers)
    slot = launch.slot if launch.elastic else launch.worker
    where = _device(device, slot)
    asked = launch.threads if launch.threads is not None else threads
    if launch.pin and where.type == "cpu":
        _pin(slot, asked or 1)
    keep_freed()
    facts = levels.apply(determinism, asked, launched_level=launch.determinism, device=str(where))
    seed_all(settings.seed, where)
    course = Course(settings, launch, _engine(launch, settings, assignment, where), journal, facts, link)
    hook.course = course
    atexit.register(hook.close)
    _introduce(course)
    return Job(course)


def _link(launch: Launch, journal: Journal) -> Link | None:
    """The connection with the agent of an elastic job. SIGTERM then means: give the device back, losing nothing."""
    if not launch.elastic:
        return None
    assert launch.agent is not None, "an elastic job's worker has an agent"
    link = Link(launch.agent, launch.worker_number)
    journal.connect(link)
    failpoint.identify(str(launch.worker_number))
    preemption.listen(link)
    failpoint.failpoint("worker.joined")
    return link


def _introduce(course: Course) -> None:
    """Tell the launcher that this worker is there, and how the job begins."""
    launch, assignment = course.launch, course.assignment
    if launch.elastic:  # seated by its first view, which is still to come
        assignment = Assignment.balanced(course.virtual_workers, launch.num_workers)
    course.journal.event(
        "joined",
        worker=_number(launch),
        virtual_workers=course.virtual_workers,
        assignment=str(assignment),
        device=str(course.engine.device),
        order=course.settings.order,
        determinism=course.facts["determinism"],
    )


def _number(launch: Launch) -> int:
    """What this worker is called in events."""
    return launch.worker_number if launch.elastic else launch.worker


def _engine(launch: Launch, settings: Settings, assignment: Assignment, device: torch.device) -> Engine:
    """What trains, connected with the other workers. In an elastic job the first view brings them, once the model is
    built.
    """
    group = Group(0, 1) if launch.elastic else Group.connect(launch)
    make = StockEngine if launch.engine == "stock-ddp" else partial(Engine, elastic=launch.elastic)
    return make(
        group,
        assignment,
        device,
        seed=settings.seed,
        order=settings.order,
        find_unused=settings.find_unused_parameters,
    )


def _assignment(launch: Launch, virtual_workers: int) -> Assignment:
    if launch.elastic:
        Assignment.balanced(virtual_workers, launch.num_workers)  # refuses more workers than there is work for
        return Assignment((virtual_workers,))
    if launch.counts is None:
        return Assignment.balanced(virtual_workers, launch.num_workers)
    assignment = Assignment(tuple(launch.counts))
    assignment.check_total(virtual_workers)
    return assignment


def _virtual_workers(launch: Launch, asked: int | None) -> int:
    """V, as the script or the launcher says."""
    if asked is None and launch.virtual_workers is None:
        raise UsageError(
            "virtual_workers is not given, and it defines the result: write melodeon.join(virtual_workers=8)"
        )
    if asked is not None and launch.virtual_workers not in (None, asked):
        raise DefinitionError(
            f"the script says virtual_workers={asked} and was started with {launch.virtual_workers}: it defines the "
            "result, so give one number, or leave it out in one of the two places"
        )
    return asked if asked is not None else launch.virtual_workers  # type: ignore[return-value]  # one of them is given


def _pin(slot: int, threads: int) -> None:
    """Stay on the cores of this slot: the next worker's are not disturbed."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(slot * threads + thread) % len(cores)] for thread in range(threads)})


def _device(asked: str | torch.device | None, worker: int) -> torch.device:
    """The worker's device: its own GPU where there are some (shared if there are fewer), else the CPU."""
    device = _parse_device(asked if asked is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device={str(device)!r} was asked for, but torch sees no CUDA device: use device='cpu'")
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else worker % count
        if index >= count:
            raise UsageError(f"device={str(device)!r} is not there: torch sees {count}, from 'cuda:0' on")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _parse_device(asked: object) -> torch.device:
    try:
        device = torch.device(asked) if isinstance(asked, str | torch.device) else None
    except RuntimeError:  # torch's word for a name that it does not know
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        shown = str(asked) if isinstance(asked, torch.device) else asked
        raise UsageError(f"device={shown!r} cannot train: use 'cpu', 'cuda' or a GPU by its number, such as 'cuda:0'")
    return device


def _silence_loaders() -> None:
    """A DataLoader's handler of SIGCHLD raises wherever it is called: not while this process ends. One that is due is
    called by the first try.
    """
    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class _ErrorHook:
    """Ends the process on an uncaught error with one sentence where it is the person's to mend, and the right exit
    code.
    """

    def __init__(self, journal: Journal, launch: Launch) -> None:
        self.course: Course | None = None
        self._journal = journal
        self._launch = launch
        self._before = sys.excepthook
        sys.excepthook = self._hook

    def tell(self, error: BaseException) -> None:
        """Send the error to the launcher, which ends the others and may end this process too: so this comes last."""
        flush_open_files()
        code = error.exit_code if isinstance(error, MelodeonError) else 1
        worker, kind = _number(self._launch), type(error).__name__
        text = str(error) or kind
        self._journal.event("error", worker=worker, type=kind, text=text, exit_code=code)
        self._journal.fail(sentence_of(worker, kind, text), code)

    def close(self) -> None:
        """At the script's end: what is wrong only now counts too, where Python would show it and end with 0."""
        try:
            if self.course is not None:
                self.course.close()
        except Exception as error:  # noqa: BLE001  # as for any other that nobody has caught
            self._hook(type(error), error, error.__traceback__)
            self._end(1)

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _silence_loaders()
        if self.course is not None:
            self.course.broken = True
        error = lost_loader_process(error) or error
        if isinstance(error, MelodeonError):
            sys.stderr.write(f"error: {error}\n")
            self.tell(error)
            self._end(error.exit_code)
        self._before(kind, error, trace)
        if isinstance(error, Exception):
            self.tell(error)
        if self._launch.num_workers > 1 or self._launch.elastic:
            self._end(1)  # threads may wait for peers that wait for this one

    def _end(self, code: int) -> None:
        if self.course is not None:
            try:
                self.course.close()
            except Exception:  # noqa: BLE001  # the process ends here with the first error's code, whatever else is wrong
                traceback.print_exc()
        flush_open_files()
        os._exit(code)
