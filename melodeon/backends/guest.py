"""Taking part in a job that another machine runs: an agent here, in the job's own folder, kept until either goes.

Machines of one job see its folder at the same path (NFS or the like). What this machine must know of the job stands
there, in the file of the job's first agent; the job's store and its secret are reached by what that file says. A guest
that gets SIGTERM, as machines do that are wanted back, gives its workers back at the end of a step and leaves.
"""

import asyncio
import contextlib
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from melodeon.backends.addresses import own_towards, require_own
from melodeon.backends.agents import Agents, kept_agents, socket_path, wake_pipe
from melodeon.backends.elastic_store import StoreThread
from melodeon.backends.local import Event, OnEvent, worker_env
from melodeon.backends.orphan import write_end
from melodeon.backends.rollcall import RollCall
from melodeon.backends.signals import forwarded_signals
from melodeon.backends.tail import LOOK_S, EventTail
from melodeon.coord.agent_config import AgentConfig, read_config
from melodeon.coord.store import open_store
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.launch import VARIABLE, Launch

FIRST = "node0"
"""The agent of the launcher's machine whose file tells guests of the job."""
REMIND_S = 1.0
"""How often an agent that shall leave is told so: it may be starting again just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One machine's part in a job."""

    run_dir: Path
    name: str
    """The node's, unique in the job."""
    slots: int
    """Workers that fit."""
    address: str | None = None
    """Where other machines reach this one; None: the address that the job's machine sees."""
    patience_s: float = 60.0
    """How long it waits for the job's store when that does not answer; then it leaves the job."""
    stuck_s: float = 15.0
    """An agent that runs and has been missing from the store for so long is killed, and started again."""


def invitation(run_dir: Path) -> AgentConfig:
    """What the job's folder tells a guest; refuses folders and jobs that cannot have any."""
    file = run_dir / "agents" / FIRST / "agent.json"
    if not file.exists():
        raise NotFound(
            f"{run_dir} is no run with agents: give the folder of a run that was started by `melodeon run --listen "
            "ADDRESS`, which both machines see"
        )
    host = read_config(file)
    if host.store.startswith("unix:") or not host.launch.get("host"):
        raise UsageError(
            f"run {host.job} takes no other machines: start it with `melodeon run --listen ADDRESS`, the address at "
            "which they reach its own"
        )
    if Path(host.run_dir) != run_dir.resolve():
        raise UsageError(
            f"the folder of run {host.job} is {host.run_dir} on its own machine and {run_dir.resolve()} here: mount it "
            "at the same path"
        )
    if not Path(host.workdir).is_dir():
        raise UsageError(f"run {host.job} trains in {host.workdir}, which is not here: mount it at the same path")
    if host.token_file is None or not Path(host.token_file).exists():
        raise NotFound(f"run {host.job} has ended: there is nothing to take part in")
    return host


def take_part(guest: Guest, *, on_start: Callable[[AgentConfig], None], on_event: OnEvent) -> bool:
    """Have an agent here until the job is over (True) or this machine has left it (False).

    `on_start` is told what the agent is started with, `on_event` what happens in the job from then on.
    """
    given = None if guest.address is None else require_own(guest.address, "--address")
    host = invitation(guest.run_dir)
    address = given or require_own(own_towards(host.host), "--address")
    token = host.token()
    asyncio.run(_require_free(host, guest.name))
    with contextlib.ExitStack() as stack:
        launch = {**host.launch, "host": address}
        config = msgspec.structs.replace(
            host,
            agent=guest.name,
            host=address,
            listen=address,
            slots=guest.slots,
            socket=str(socket_path(Path(host.run_dir), f"agents/{guest.name}/agent", stack)),
            launch=launch,
            zygote="",
            guest=True,
            store_s=guest.patience_s,
        )
        env = {name: value for name, value in worker_env(Launch(**launch), {}).items() if name != VARIABLE}
        selector = stack.enter_context(selectors.DefaultSelector())
        visit = _Visit(Path(host.run_dir), on_event)
        with kept_agents(env, selector, begun=lambda: True) as agents:
            stack.enter_context(forwarded_signals(wake_pipe(selector, stack, visit.signalled)))
            agents.describe(config)
            agents.start()
            on_start(config)
            store = StoreThread(host.store)
            stack.callback(store.close)
            with contextlib.closing(RollCall(store, host.prefix, token, guest.stuck_s)) as roll:
                visit.watch(agents, selector, roll, guest.patience_s + guest.stuck_s)
        if agents.hopeless is not None and not visit.leaving:
            raise agents.hopeless
    if not visit.leaving:
        asyncio.run(write_end(host, token))
    return not visit.leaving


class _Visit:
    """Waits for the agent's end, and passes on that this machine is wanted back."""

    def __init__(self, run_dir: Path, on_event: OnEvent) -> None:
        self.leaving = False
        self._hurry = False
        self._is_over = False
        """The job has ended, and with it perhaps its store; scripts may still have something to do."""
        self._on_event = on_event
        self._events = EventTail(run_dir, self._heard)

    def signalled(self, numbers: bytes) -> None:
        """The first signal asks to leave in order, another one to leave at once."""
        self._hurry = self.leaving or len(numbers) > 1
        self.leaving = True

    def watch(self, agents: Agents, selector: selectors.BaseSelector, roll: RollCall, patience_s: float) -> None:
        """Until the agent has ended, or there is no time for that.

        An agent ends by itself where the store stays away; one that stands still does not, and is given `patience_s`.
        """
        remind_at = 0.0
        while agents.are_needed and not self._hurry:
            for key, _ in selector.select(LOOK_S):
                key.data()
            self._events.read()
            for agent in roll.missing(agents.running):
                agents.kill(agent)
            if not self._is_over and (trouble := roll.trouble(patience_s)) is not None:
                if self.leaving:
                    return
                raise trouble
            if self.leaving and time.monotonic() >= remind_at:
                remind_at = time.monotonic() + REMIND_S
                agents.tell(signal.SIGTERM)
        self._events.read()

    def _heard(self, event: Event) -> None:
        self._is_over = self._is_over or (event.get("kind") == "end" and "outcome" in event)
        self._on_event(event)


async def _require_free(host: AgentConfig, name: str) -> None:
    """Refuse the name of an agent that is there; as the store is asked, one that cannot be reached is told too."""
    file = msgspec.structs.replace(host, agent=name).node_dir / "agent.json"
    is_hosts = file.exists() and not read_config(file).guest  # it may not have told the store of itself yet
    async with open_store(host.store, token=host.token()) as store:
        if is_hosts or await store.get(f"{host.prefix}agents/{name}") is not None:
            raise UsageError(f"an agent named {name} takes part in job {host.job} already: give another --name")
