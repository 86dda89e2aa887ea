"""An elastic job on this machine: host its store, keep its agents running, show what it does, leave nothing behind.

The launcher decides nothing about the training. It starts one agent (or several, each playing a node), starts those
again that die, and reads two things that grow: the run's events, and the output of the worker that has virtual rank 0.
All else goes through files and sockets, so everything else can die and come back. If the launcher itself goes, the
lifeline closes, and agents, nurseries and workers end by themselves.
"""

import contextlib
import os
import secrets
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from melodeon.backends.agents import Agents, kept_agents, socket_path, wake_pipe
from melodeon.backends.local import Event, OnEvent, OnOutput, worker_env
from melodeon.backends.outcome import STOPPED, Outcome
from melodeon.backends.signals import forwarded_signals
from melodeon.backends.tail import LOOK_S, EventTail, Tail
from melodeon.coord import registry
from melodeon.coord.agent_config import LOOPBACK, AgentConfig
from melodeon.coord.marks import started
from melodeon.coord.master_state import JobConfig
from melodeon.coord.messages import Ask
from melodeon.core.errors import UsageError
from melodeon.core.launch import VARIABLE, Launch

if TYPE_CHECKING:
    from melodeon.backends.elastic_store import StoreThread

# What needs asyncio is imported on use: this module is read by every `melodeon --help`.

STORE_S = 10.0
"""How long a call waits for the store that the launcher hosts."""
GRACE_S = 30.0
"""From the first SIGINT or SIGTERM to the end of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """How an elastic job is run."""

    job: JobConfig
    agents: int = 1
    """Agents on this machine; each plays a node."""
    slots: int = 64
    """Workers that fit on each."""
    hosts: Sequence[str] = ()
    """Each agent's host, where they are to differ: workers of different hosts meet through sockets."""
    listen: str = ""
    """The address at which other machines' agents and workers reach this one; empty: the job stays on this machine."""
    store: str | None = None
    """An etcd's URL; None: the launcher hosts a store."""
    alone: bool = True
    """Refuse to start while another job of the same id runs here; a cluster's jobs are told apart by its folder."""
    preload: tuple[str, ...] | None = None
    """Modules to import before workers are made; None: what training needs."""
    zygote: str = ""
    """The name of a process that nurseries can be forked of; empty: there is none."""
    ttl_s: float = 3.0
    silence_s: float = 5.0
    resend_s: float = 0.5
    etcd_s: float = 60.0
    """How long agents wait for an etcd that does not answer; then they end, and their workers with them."""
    stuck_s: float = 15.0
    """An agent that runs and has been missing from the store for so long is killed, and started again."""

    def __post_init__(self) -> None:
        factor = self.job.straggler_factor
        if not (factor == 0 or 1 <= factor < float("inf")):
            raise UsageError(
                f"a straggler factor of {factor} tells no slow worker from the others: give 0, which watches nobody, "
                "or a number of at least 1, such as 1.5"
            )


def run_elastic(
    command: Sequence[str],
    launch: Launch,
    run_dir: Path,
    elastic: Elastic,
    *,
    env: Mapping[str, str] | None = None,
    on_event: OnEvent | None = None,
    on_output: OnOutput | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run `python *command` as an elastic job, to its end.

    `launch` is what every worker is told besides its place. `run_dir` must exist; it receives `events.jsonl`,
    `worker-<k>.log` and `.err`, and `agents/<agent>/` with what each agent keeps.
    """
    with contextlib.ExitStack() as stack:
        job = _Job(command, launch, run_dir.resolve(), elastic, dict(env or {}), stack)
        job.on_event, job.on_output, job.grace_s = on_event, on_output, grace_s
        return job.run()


class _Job:
    """One job being run."""

    on_event: OnEvent | None = None
    on_output: OnOutput | None = None
    grace_s = GRACE_S

    def __init__(
        self,
        command: Sequence[str],
        launch: Launch,
        run_dir: Path,
        elastic: Elastic,
        env: Mapping[str, str],
        stack: contextlib.ExitStack,
    ) -> None:
        self._command, self._launch, self._run_dir, self._elastic = command, launch, run_dir, elastic
        self._env = {name: value for name, value in worker_env(launch, env).items() if name != VARIABLE}
        self._stack = stack
        self._token = secrets.token_hex(16)
        self._prefix = ""
        """The beginning of this run's keys in the store."""
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._agents: Agents
        self._errors: list[Event] = []
        self._begun = False
        self._stopping: float | None = None
        """Since when the job is to end."""
        self._stop = Ask(id=secrets.token_hex(8), what="stop")
        self._calls = stack.enter_context(contextlib.ExitStack())
        self._say_again = 0.0
        self._shown = -1
        self._outputs: list[Tail] = []
        self._events = EventTail(run_dir, self._heard)

    def run(self) -> Outcome:
        """Start, watch, end."""
        from melodeon.backends.elastic_store import hosted_store

        path = socket_path(self._run_dir, "store", self._stack)
        hosting = hosted_store(path, self._elastic.store, self._token, self._elastic.listen)
        store = self._stack.enter_context(hosting)
        try:
            with kept_agents(self._env, self._selector, begun=lambda: self._begun) as self._agents:
                self._stack.enter_context(forwarded_signals(wake_pipe(self._selector, self._stack, self._signalled)))
                self._open(store)
                self._show(0)
                self._watch(store)
        finally:
            registry.remove(self._elastic.job.job, self._run_dir)
        self._look()
        for output in self._outputs:
            output.close()
        outcome = self._outcome(store)
        if self._elastic.store is not None:
            store.clear(self._prefix, self._token)
        return outcome

    # -- starting ------------------------------------------------------------------------------------------------------

    def _open(self, store: "StoreThread") -> None:
        elastic = self._elastic
        token_file = self._run_dir / ".token"
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
            file.write(self._token)
        self._stack.callback(token_file.unlink, missing_ok=True)
        run = secrets.token_hex(8)
        configs = [self._config(index, run, store.address, token_file) for index in range(elastic.agents)]
        self._prefix = configs[0].prefix
        for config in configs:
            self._agents.describe(config)
        # Whoever finds the job finds all that its folder tells of it.
        registry.write(
            registry.Entry(
                id=elastic.job.job,
                run_dir=str(self._run_dir),
                pid=os.getpid(),
                started=started(os.getpid()) or 0,
                agents=tuple(config.socket for config in configs),
                created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            ),
            alone=elastic.alone,
        )
        self._agents.start()
        if elastic.listen and self.on_event is not None:
            text = f"machines that see this folder take part by: melodeon agent {self._run_dir}"
            self.on_event({"kind": "note", "text": text})

    def _config(self, index: int, run: str, store: str, token_file: Path) -> AgentConfig:
        elastic, agent = self._elastic, f"node{index}"
        host = elastic.hosts[index] if elastic.hosts else elastic.listen or socket.gethostname()
        is_reached = bool(elastic.listen) or len(set(elastic.hosts)) > 1
        return AgentConfig(
            job=elastic.job.job,
            run=run,
            agent=agent,
            host=host,
            slots=elastic.slots,
            run_dir=str(self._run_dir),
            workdir=str(Path.cwd()),
            socket=str(socket_path(self._run_dir, f"agents/{agent}/agent", self._stack)),
            store=store,
            listen=elastic.listen or LOOPBACK,
            token_file=str(token_file),
            argv=tuple(self._command),
            launch=asdict(replace(self._launch, host=host if is_reached else "")),
            job_config=elastic.job,
            preload=elastic.preload,
            zygote=elastic.zygote,
            store_s=STORE_S if elastic.store is None else elastic.etcd_s,
            ttl_s=elastic.ttl_s,
            silence_s=elastic.silence_s,
            resend_s=elastic.resend_s,
        )

    # -- watching ------------------------------------------------------------------------------------------------------

    def _watch(self, store: "StoreThread") -> None:
        from melodeon.backends.rollcall import RollCall

        with contextlib.closing(RollCall(store, self._prefix, self._token, self._elastic.stuck_s)) as roll:
            while self._agents.are_needed and not self._is_out_of_time():
                for key, _ in self._selector.select(LOOK_S):
                    key.data()
                self._look()
                for agent in roll.missing(self._agents.running):
                    self._agents.kill(agent)
                if self._stopping is not None:
                    self._say_stop()

    def _is_out_of_time(self) -> bool:
        return self._stopping is not None and time.monotonic() - self._stopping >= self.grace_s

    def _look(self) -> None:
        self._events.read()
        for output in self._outputs:
            output.read()

    def _heard(self, event: Event) -> None:
        self._begun = True
        if event.get("kind") == "error":
            self._errors.append(event)
        if event.get("kind") == "view" and isinstance(workers := event.get("workers"), list) and workers:
            self._show(int(workers[0]))
        if self.on_event is not None:
            self.on_event(event)

    def _show(self, worker: int) -> None:
        """From now on show this worker's output; what it has printed before, another has shown."""
        if worker == self._shown or self.on_output is None:
            return
        for output in self._outputs:
            output.close()
        self._outputs = [
            Tail(self._run_dir / f"worker-{worker}.{end}", partial(self.on_output, name), from_end=self._shown >= 0)
            for name, end in (("stdout", "log"), ("stderr", "err"))
        ]
        self._shown = worker

    # -- ending --------------------------------------------------------------------------------------------------------

    def _signalled(self, numbers: bytes) -> None:
        if self._stopping is None:
            self._stopping = time.monotonic()
            numbers = numbers[1:]
        if numbers:
            self._stopping -= self.grace_s  # somebody is in a hurry

    def _say_stop(self) -> None:
        """Tell every agent that can be reached, once a second: some of them may be starting again just now."""
        from melodeon.coord.wire import pack

        now = time.monotonic()
        if now < self._say_again:
            return
        self._say_again = now + 1.0
        self._calls.close()
        for address in self._agents.sockets:
            # An agent passes a wish on for as long as somebody is on the line.
            call = self._calls.enter_context(socket.socket(socket.AF_UNIX))
            call.settimeout(LOOK_S)
            with contextlib.suppress(OSError):
                call.connect(address)
                call.sendall(pack(self._stop))

    def _outcome(self, store: "StoreThread") -> Outcome:
        from melodeon.backends.elastic_end import reason_of
        from melodeon.coord.store import StoreError

        if self._agents.hopeless is not None:
            return Outcome(exit_code=1, reason=str(self._agents.hopeless))
        unsaid = "the agents ended, and none of them said how the job did"
        try:
            stored = store.read(self._prefix + "state", self._token)
        except StoreError as error:
            stored, unsaid = None, f"{unsaid}: {error}"
        found = reason_of(stored, self._run_dir, self._errors)
        if self._stopping is not None and (found is None or found.ok or found == STOPPED):
            return STOPPED
        return found or Outcome(exit_code=1, reason=unsaid)
