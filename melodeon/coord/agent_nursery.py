"""An agent's nursery: kept running, asked for workers, and believed about how they ended.

One nursery at a time, found again by its mark when the agent itself was started again. A start that was sent to a
nursery which then died goes to the next one only if the worker's mark shows that it was never begun. If the worker may
exist it counts as gone, and is killed if it shows up.

Where the controller keeps a zygote the nursery is forked of that. If it dies before it has spoken, the next is started
the long way.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from melodeon.coord import wire
from melodeon.coord.agent_config import TOKEN_VARIABLE, AgentConfig
from melodeon.coord.lines import Brood, Start
from melodeon.coord.marks import is_begun, kill_group, last_line, read_mark, write_mark
from melodeon.coord.sprout import request_for, sprout

QUICK_S = 30.0
STUCK_S = 15.0
"""A nursery that has not made a worker for so long stands still; it takes milliseconds."""
MOST_FAILURES, MOST_KILLS = 3, 20
"""A nursery that ends this often in a row, within `QUICK_S` of its start and before it could speak, will not do better.
One that somebody else has ended may."""


class Nursery:
    """The agent's side of its nursery."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        on_brood: Callable[[Brood], None],
        on_unsure: Callable[[int], None],
        on_hopeless: Callable[[str], None],
    ) -> None:
        self._config = config
        self._on_brood, self._on_unsure, self._on_hopeless = on_brood, on_unsure, on_hopeless
        self._mark = config.node_dir / "nursery.pid"
        self._log = config.node_dir / "nursery.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._sprouting: asyncio.Task[None] | None = None
        self._early: dict[int, tuple[Brood, asyncio.StreamWriter]] = {}
        """Who has called while it is not known yet whom the zygote has made."""
        self._pid: int | None = None
        self._ended = -1
        self._started_at = 0.0
        self._quick_deaths = 0
        self._writer: asyncio.StreamWriter | None = None
        self._brood = Brood(pid=0)
        self._waiting: dict[int, Start] = {}
        """Not sent yet."""
        self._sent: dict[int, Start] = {}
        """Sent to the present nursery, and not heard of since."""
        self._sent_at = 0.0
        """When the first of them was, or one of them was heard of."""
        self._hopeless = ""
        """Why there will be no other nursery."""

    def open(self) -> None:
        """Find the nursery of an earlier incarnation, or start one."""
        pid = read_mark(self._mark)
        if pid is None:
            self._launch()
        else:
            self._watch(pid)

    def knows(self, worker: int) -> bool:
        """Whether the connected nursery has that worker among its living children."""
        return self._writer is not None and worker in self._brood.workers

    def is_asked_for(self, worker: int) -> bool:
        """Whether a start waits to be sent, or was sent and not heard of since."""
        return worker in self._waiting or worker in self._sent

    @property
    def unmade(self) -> tuple[int, ...]:
        """Who is asked for while no nursery is there to make it."""
        return tuple(self._waiting)

    def start(self, order: Start) -> None:
        """Ask for a worker, now or as soon as a nursery is there."""
        self._waiting[order.worker] = order
        self._flush()
        if self._hopeless:
            asyncio.get_running_loop().call_soon(self._on_hopeless, self._hopeless)

    def cancel(self, worker: int) -> bool:
        """Do not start it after all; False if it was asked for already."""
        return self._waiting.pop(worker, None) is not None

    def look(self, now: float) -> None:
        """End a nursery that stands still: those that it was to make are made by the next one."""
        if self._sent and self._pid is not None and now - self._sent_at >= STUCK_S:
            kill_group(self._pid)

    def heard(self, brood: Brood, writer: asyncio.StreamWriter) -> None:
        """The nursery has spoken. One that is not ours any more (an older one, woken up) is sent away."""
        if self._sprouting is not None:
            self._early[brood.pid] = (brood, writer)
            return
        if brood.pid != self._pid:
            kill_group(brood.pid)
            return
        is_new, self._writer, self._brood = writer is not self._writer, writer, brood
        self._quick_deaths, self._sent_at = 0, time.monotonic()
        for worker in brood.workers.keys() | brood.ended.keys():
            self._sent.pop(worker, None)
        if is_new:  # what was on its way on another connection may be lost
            self._waiting, self._sent = self._sent | self._waiting, {}
        self._on_brood(brood)
        self._flush()

    def hung_up(self, writer: asyncio.StreamWriter) -> None:
        """That connection is over."""
        self._early = {pid: call for pid, call in self._early.items() if call[1] is not writer}
        if self._writer is writer:
            self._writer = None

    async def close(self, patience_s: float = 5.0) -> None:
        """End it, and with it the workers that it made."""
        if self._sprouting is not None:
            self._sprouting.cancel()
            await asyncio.gather(self._sprouting, return_exceptions=True)
        if self._pid is None:
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._ended, gone.set)  # instead of `_died`: there is no other to start
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGTERM)
        try:
            async with asyncio.timeout(patience_s):
                await gone.wait()
        except TimeoutError:
            kill_group(self._pid)
            await gone.wait()
        finally:
            loop.remove_reader(self._ended)
            os.close(self._ended)
            self._pid = None
            if self._process is not None:
                self._process.wait()

    def _flush(self) -> None:
        if self._writer is None:
            return
        for worker, order in list(self._waiting.items()):
            del self._waiting[worker]
            self._sent_at = self._sent_at if self._sent else time.monotonic()
            self._sent[worker] = order
            self._writer.write(wire.pack(order))

    def _launch(self) -> None:
        if self._config.zygote and not self._quick_deaths:
            self._sprouting = asyncio.create_task(self._sprout())
            return
        try:
            self._spawn()
        except OSError as error:
            self._give_up(f"the process that is to make workers cannot be started: {error}")

    async def _sprout(self) -> None:
        try:
            pid = await self._ask_zygote()
            self._sprouting = None
            self._adopt(pid)
        except OSError as error:
            self._sprouting = None
            self._give_up(f"the process that is to make workers cannot be started: {error}")
        early, self._early = self._early, {}
        for brood, writer in early.values():
            self.heard(brood, writer)

    async def _ask_zygote(self) -> int:
        """The nursery that it has forked, or 0; why it has not is in the log."""
        config = self._config
        with self._log.open("ab") as log:
            fds = [log.fileno(), *self._lifeline()]
            made = await sprout(config.zygote, request_for(config.socket, self._env(), config.preload), fds)
            if made.refused:
                log.write(f"torch is imported here, since {config.zygote} is of no use: {made.refused}\n".encode())
        return made.pid

    def _adopt(self, pid: int) -> None:
        """Take what the zygote has made, or start one."""
        if pid:
            try:
                self._watch(pid)
            except ProcessLookupError:
                self._quick_deaths += 1  # it has ended meanwhile
            else:
                write_mark(self._mark, pid)
                return
        self._spawn()

    def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._config.nursery_command(),
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._lifeline(),
                start_new_session=True,
            )
        write_mark(self._mark, self._process.pid)
        self._watch(self._process.pid)

    def _env(self) -> dict[str, str]:
        env = {**os.environ, **self._config.env}
        env.pop(TOKEN_VARIABLE, None)  # scripts have no business with it
        return env

    def _lifeline(self) -> tuple[int, ...]:
        return () if self._config.lifeline_fd is None else (self._config.lifeline_fd,)

    def _watch(self, pid: int) -> None:
        self._ended = os.pidfd_open(pid)
        self._pid, self._started_at = pid, time.monotonic()
        asyncio.get_running_loop().add_reader(self._ended, self._died)

    def _died(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ended)
        os.close(self._ended)
        code = self._process.wait() if self._process is not None else None
        self._process, self._pid, self._writer = None, None, None
        sent, self._sent = self._sent, {}
        self._waiting |= {worker: order for worker, order in sent.items() if not is_begun(Path(order.mark))}
        if time.monotonic() - self._started_at < QUICK_S and not self._brood.pid:
            self._quick_deaths += 1
        self._brood = Brood(pid=0)
        was_killed = code is None or code in (-signal.SIGKILL, -signal.SIGTERM)
        if self._quick_deaths < (MOST_KILLS if was_killed else MOST_FAILURES):
            self._launch()
        else:
            self._give_up(f"{_why(code)} {self._quick_deaths} times: {last_line(self._log)} (see {self._log})")
        for worker in sent.keys() - self._waiting.keys():
            self._on_unsure(worker)

    def _give_up(self, why: str) -> None:
        self._hopeless = why
        self._on_hopeless(why)


def _why(code: int | None) -> str:
    how = "ended" if code is None else f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the process that is to make workers {how}"
