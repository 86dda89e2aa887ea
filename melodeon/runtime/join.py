"""`melodeon.join()`: this process becomes a worker of its job, or a job of one worker by itself.

The order matters: the level's switches first, then the seeds, then the others; the model is built after this returns,
so it is built alike everywhere.
"""

import atexit
import os
import sys
import traceback
from types import TracebackType
from typing import Literal

import torch

from melodeon.coord import failpoint
from melodeon.core.assignment import Assignment
from melodeon.core.errors import MelodeonError, UsageError
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
from melodeon.runtime.random_streams import seed_all
from melodeon.runtime.settings import Order, Settings
from melodeon.runtime.stock import StockEngine


def join(
    *,
    virtual_workers: int,
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
    does not.
    """
    launch = Launch.from_env(os.environ) or Launch()
    journal = Journal(launch)
    hook = _ErrorHook(journal, launch)  # first of all: from here on an error ends the process with one sentence
    settings = Settings(
        virtual_workers=virtual_workers,
        seed=seed,
        order=launch.order or order,
        nan=nan,
        log_every=log_every,
        receipt_every=receipt_every if launch.receipt_every is None else launch.receipt_every,
        find_unused_parameters=find_unused_parameters,
    )
    if launch.lifeline_fd is not None:
        lifeline.watch(launch.lifeline_fd)
    link = _link(launch, journal)
    assignment = _assignment(launch, virtual_workers)
    where = _device(device, launch.slot if launch.elastic else launch.worker)
    asked = launch.threads if launch.threads is not None else threads
    facts = levels.apply(determinism, asked, launched_level=launch.determinism, device=str(where))
    seed_all(settings.seed, where)
    if launch.engine == "stock-ddp":
        group = Group.connect(launch)
        engine: Engine = StockEngine(
            group, assignment, where, seed=settings.seed, order=settings.order, find_unused=find_unused_parameters
        )
    else:
        # In an elastic job the first view brings the others, once the model is built.
        group = Group(0, 1) if launch.elastic else Group.connect(launch)
        engine = Engine(
            group,
            assignment,
            where,
            seed=settings.seed,
            order=settings.order,
            find_unused=find_unused_parameters,
            elastic=launch.elastic,
        )
    course = Course(settings, launch, group, assignment, engine, journal, facts, link)
    hook.course = course
    atexit.register(course.close)
    journal.event(
        "joined",
        worker=launch.worker_number if launch.elastic else launch.worker,
        virtual_workers=virtual_workers,
        assignment=str(assignment),
        device=str(where),
        order=settings.order,
        determinism=facts["determinism"],
    )
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


def _assignment(launch: Launch, virtual_workers: int) -> Assignment:
    if launch.elastic:
        Assignment.balanced(virtual_workers, launch.num_workers)  # refuses more workers than there is work for
        return Assignment((virtual_workers,))
    if launch.counts is None:
        return Assignment.balanced(virtual_workers, launch.num_workers)
    assignment = Assignment(tuple(launch.counts))
    assignment.check_total(virtual_workers)
    return assignment


def _device(asked: str | torch.device | None, worker: int) -> torch.device:
    """The worker's device: its own GPU where there are some (shared if there are fewer), else the CPU."""
    device = torch.device(asked if asked is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device={str(device)!r} was asked for, but torch sees no CUDA device: use device='cpu'")
        index = device.index if device.index is not None else worker % torch.cuda.device_count()
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


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
        """Send the error to the launcher."""
        code = error.exit_code if isinstance(error, MelodeonError) else 1
        text = str(error) or type(error).__name__
        worker = self._launch.worker_number if self._launch.elastic else self._launch.worker
        self._journal.event("error", worker=worker, type=type(error).__name__, text=text, exit_code=code)
        self._journal.fail(text, code)

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self.course is not None:
            self.course.broken = True
        error = lost_loader_process(error) or error
        if isinstance(error, MelodeonError):
            self.tell(error)
            sys.stderr.write(f"error: {error}\n")
            self._end(error.exit_code)
        if isinstance(error, Exception):
            self.tell(error)
        self._before(kind, error, trace)
        if self._launch.num_workers > 1 or self._launch.elastic:
            self._end(1)  # threads may wait for peers that wait for this one

    def _end(self, code: int) -> None:
        if self.course is not None:
            try:
                self.course.close()
            except Exception:  # noqa: BLE001  # the process ends here with the first error's code, whatever else is wrong
                traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
