"""The workers of one node: their processes, their connections, and doing what `AgentState` says about them.

A worker's end is seen by its pidfd at once, and reported when two more things are in: the last words on its connection
(it may have said DONE), and its exit code from the nursery. Both come within a millisecond or so; a nursery or a
connection that is stuck is not waited for longer than `LAST_WORDS_S`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from melodeon.coord import wire
from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.agent_nursery import Nursery
from melodeon.coord.agent_state import AgentState, Todo
from melodeon.coord.failpoint import failpoint
from melodeon.coord.lastwords import last_error
from melodeon.coord.lines import Brood, Start
from melodeon.coord.marks import is_whole, kill_group, read_mark, started
from melodeon.coord.messages import Notice, Orders, Phase, Status, WorkerOrder
from melodeon.core.launch import Launch

LAST_WORDS_S = 0.25
PULSE_S = 0.25
LATE_S = 0.5
"""A pulse that is this late: we were stopped or starved."""


@dataclass(slots=True, eq=False)
class _Process:
    """One worker's process, and what is known of its end."""

    worker: int
    pid: int
    pidfd: int
    ended: bool = False
    code: int | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """The nursery has said how it ended."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Its connection is over."""


class End(msgspec.Struct, frozen=True):
    """How one worker ended."""

    code: int | None
    """Negative for a signal; None: nobody saw."""
    error: str


class Workers:
    """Carries out what the state machine decides, and feeds it what happens."""

    def __init__(self, config: AgentConfig, state: AgentState, *, on_news: Callable[[bool], None]) -> None:
        self._config, self.state, self._on_news = config, state, on_news
        self._processes: dict[int, _Process] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._judge_after = 0.0
        self._awaited: dict[int, float] = {}
        """Workers that have spoken to an earlier incarnation, and when they must have called this one."""
        self._errors: dict[int, str] = {}
        self.ends: dict[int, End] = {}
        """How workers ended, as far as it is known."""
        self.empty = asyncio.Event()
        """Nobody runs here."""
        self.empty.set()
        self._leaving = False
        self.nursery = Nursery(
            config, on_brood=self._on_brood, on_unsure=self._on_unsure, on_hopeless=self._on_hopeless
        )

    def open(self) -> None:
        """Take care of who runs here already; then of the rest."""
        for worker in self.state.running:
            pid = read_mark(self._mark(worker))
            if pid is not None:
                self._track(worker, pid)
                if self._met(worker).exists():
                    self._awaited[worker] = time.monotonic() + self._config.silence_s
        self.nursery.open()
        # Of the others, the nursery's first word tells.
        self._pulse(time.monotonic())

    async def close(self) -> None:
        """End everybody."""
        if self._timer is not None:
            self._timer.cancel()
        for process in self._processes.values():
            self._kill(process)
        await self.nursery.close()
        for task in list(self._burials):
            task.cancel()

    def give_back(self) -> None:
        """Take no more workers, and ask those that run to leave at the end of a step."""
        self._leaving = True
        self.state.slots = 0
        for process in self._processes.values():
            if not process.ended:
                _ask_to_leave(process)

    # -- what happens ------------------------------------------------------------------------------------------------

    def on_orders(self, orders: Orders) -> None:
        """The master's word, if it is news."""
        self._do(self.state.on_orders(orders, time.monotonic()))

    def on_status(self, status: Status, writer: asyncio.StreamWriter) -> None:
        """A worker's word, on that connection."""
        process = self._processes.get(status.worker)
        if process is None and started(status.pid) is not None:
            process = self._track(status.worker, status.pid)
        if process is None or process.pid != status.pid:
            kill_group(status.pid)  # a second process under one number, or a last word that came after the burial
            return
        self._awaited.pop(status.worker, None)
        if self._writers.get(status.worker) is not writer:
            self._writers[status.worker] = writer
            self._met(status.worker).touch()
            process.closed.clear()
            notice = self.state.notice_for(status.worker)
            if notice is not None and notice.number > status.notice:
                self._tell(status.worker, notice)
        if status.error:
            self._errors[status.worker] = status.error
        before = self.state.status_of(status.worker)
        self._do(self.state.on_status(status, time.monotonic()), urgent=before is None or _is_news(before, status))

    def on_hang_up(self, writer: asyncio.StreamWriter) -> None:
        """A connection is over; its worker may call again."""
        self.nursery.hung_up(writer)
        for worker, own in list(self._writers.items()):
            if own is writer:
                del self._writers[worker]
                if worker in self._processes:
                    self._processes[worker].closed.set()

    def _on_brood(self, brood: Brood) -> None:
        for worker, pid in brood.workers.items():
            if worker not in self._processes and self.state.status_of(worker) is not None:
                self._track(worker, pid)
        for worker, code in brood.ended.items():
            process = self._processes.get(worker)
            if process is not None:
                process.code = code
                process.told.set()
            elif worker not in self.ends:
                self._gone(worker, code)
        for worker in self.state.running:
            is_known = worker in self._processes or worker in brood.workers
            if not is_known and not self.nursery.is_asked_for(worker):
                # Asked for by an earlier incarnation; it was begun by another nursery, or never.
                self._on_unsure(worker)

    def _on_unsure(self, worker: int) -> None:
        if worker in self._processes:
            return  # its pidfd tells
        pid = read_mark(self._mark(worker))
        if pid is None or self._track(worker, pid) is None:
            self._do(self.state.on_worker_exit(worker, None))

    def _on_hopeless(self, sentence: str) -> None:
        for worker in self.state.running:
            if worker not in self._processes:
                self._do(self.state.on_worker_exit(worker, None, sentence))

    # -- processes ---------------------------------------------------------------------------------------------------

    def _track(self, worker: int, pid: int) -> _Process | None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        process = self._processes[worker] = _Process(worker, pid, pidfd)
        if worker not in self._writers:
            process.closed.set()
        self.empty.clear()
        asyncio.get_running_loop().add_reader(pidfd, self._ended, process)
        if self._leaving:  # it was being made when this node was wanted back
            _ask_to_leave(process)
        return process

    def _ended(self, process: _Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        process.ended = True
        task = asyncio.create_task(self._bury(process))
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _bury(self, process: _Process) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                if self.nursery.knows(process.worker):
                    await process.told.wait()
                await process.closed.wait()
        except TimeoutError:
            pass
        failpoint("agent.exit")
        # Whoever made it may be gone: what it left running is ended here too.
        kill_group(process.pid)
        del self._processes[process.worker]
        self._writers.pop(process.worker, None)
        self._gone(process.worker, process.code)
        if not self._processes:
            self.empty.set()

    def _gone(self, worker: int, code: int | None) -> None:
        end = self.ends[worker] = End(code, self._error(worker, code))
        self._do(self.state.on_worker_exit(worker, code, end.error))

    def _error(self, worker: int, code: int | None) -> str:
        """The sentence for an end that is the script's own fault; a death by a signal is not."""
        # Its process may be seen to end before its last word was read, where many want the processor.
        told = self._errors.get(worker) or last_error(Path(self._config.run_dir), worker)
        status = self.state.status_of(worker)
        if not told and code == 0 and (status is None or status.phase is Phase.STARTING):
            return (
                f"worker {worker} ended before it trained: the script must call melodeon.join(...) and go through "
                "job.epochs(...); `melodeon run --static` runs any script"
            )
        if code is None or code <= 0:
            return told
        return told or f"worker {worker} ended with exit code {code}"

    def _kill(self, process: _Process) -> None:
        if not process.ended:
            kill_group(process.pid)

    # -- carrying out ------------------------------------------------------------------------------------------------

    def _do(self, todo: Todo, *, urgent: bool = True) -> None:
        for order in todo.start:
            self._start(order)
        for worker in todo.kill:
            process = self._processes.get(worker)
            if process is not None:
                self._kill(process)
            elif self.nursery.cancel(worker):
                self._do(self.state.on_worker_exit(worker, None))
        for worker, notice in todo.notices.items():
            self._tell(worker, notice)
        if todo.report or todo.end:
            self._on_news(urgent)

    def _start(self, order: WorkerOrder) -> None:
        if self._leaving:  # the order was on its way when this node was wanted back
            self._do(self.state.on_worker_exit(order.worker, None))
            return
        self._mark(order.worker).touch()
        failpoint("agent.start")
        self.nursery.start(
            Start(
                worker=order.worker,
                argv=self._config.argv,
                env=self._launch(order).to_env(),
                out=str(Path(self._config.run_dir) / f"worker-{order.worker}.log"),
                err=str(Path(self._config.run_dir) / f"worker-{order.worker}.err"),
                mark=str(self._mark(order.worker)),
            )
        )

    def _launch(self, order: WorkerOrder) -> Launch:
        return replace(
            Launch(**self._config.launch),
            worker=order.worker,
            worker_number=order.worker,
            slot=order.slot,
            agent=self._config.socket,
            elastic=True,
            run_dir=self._config.run_dir,
        )

    def _tell(self, worker: int, notice: Notice) -> None:
        failpoint("agent.notice")
        writer = self._writers.get(worker)
        if writer is not None:
            writer.write(wire.pack(notice))

    def _mark(self, worker: int) -> Path:
        return self._config.node_dir / f"worker-{worker}.pid"

    def _met(self, worker: int) -> Path:
        """A file that says: this worker has spoken. One that has not may still be importing, and is given longer."""
        return self._config.node_dir / f"worker-{worker}.met"

    def _pulse(self, before: float) -> None:
        """Look for silent workers; not right after we were stopped or starved, while heartbeats lie unread."""
        now = time.monotonic()
        if now - before > PULSE_S + LATE_S:
            self._judge_after = now + LATE_S
        if now >= self._judge_after:
            self.nursery.look(now)
        self.state.on_unmade(self.nursery.unmade, now)
        due = self.state.next_at()
        if due is not None and now >= max(due, self._judge_after):
            self._do(self.state.on_tick(now))
        for worker, until in list(self._awaited.items()):
            if now >= max(until, self._judge_after):
                del self._awaited[worker]
                if (process := self._processes.get(worker)) is not None:
                    self._kill(process)
        self._timer = asyncio.get_running_loop().call_later(PULSE_S, self._pulse, now)


def _ask_to_leave(process: _Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        signal.pidfd_send_signal(process.pidfd, signal.SIGTERM)


def _is_news(before: Status, now: Status) -> bool:
    """Whether more has changed than progress."""
    same = {name: getattr(before, name) for name in ("number", "step", "at", "busy_s", "metrics", "notice")}
    return msgspec.structs.replace(now, **same) != before


def known_workers(config: AgentConfig) -> dict[int, bool]:
    """Workers of earlier incarnations -> whether they may still run."""
    has_nursery = read_mark(config.node_dir / "nursery.pid") is not None
    return {
        int(path.stem.removeprefix("worker-")): read_mark(path) is not None or (has_nursery and not is_whole(path))
        for path in config.node_dir.glob("worker-*.pid")
    }
