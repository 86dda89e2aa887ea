"""What an agent is told when it is started: one file, because a command line can be read by everybody."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from melodeon.coord.handed import hand, read_handed
from melodeon.coord.master_state import JobConfig
from melodeon.core.errors import NotFound

LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "MELODEON_TOKEN"  # noqa: S105 - the variable's name


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of one job."""

    job: str
    run: str
    """Made anew whenever the job is started: a store that jobs share keeps nothing of one of the same name for it."""
    agent: str
    """Its id, unique in the job; the same again when it is started again."""
    host: str
    """Workers with the same host meet through files, others through sockets."""
    slots: int
    run_dir: str
    workdir: str = ""
    """The folder that the script is run in; empty: the agent's own."""
    socket: str
    """Where its workers, its nursery and people reach it."""
    store: str
    """`unix:PATH`, `tcp:HOST:PORT` or etcd's URL."""
    listen: str = LOOPBACK
    """The address at which other agents reach it while it is the master's."""
    token_file: str | None = None
    """The file (of mode 0600) with the secret that agents and store share; None: the variable MELODEON_TOKEN."""
    argv: tuple[str, ...]
    """The script and its arguments, or `-m module ...`."""
    env: dict[str, str] = {}
    """Added to the agent's own environment for its workers."""
    launch: dict[str, Any] = {}
    """Fields of every worker's `Launch`; the agent adds each one's place."""
    job_config: JobConfig
    """For the master, if this agent comes to run it."""
    preload: tuple[str, ...] | None = None
    """Modules that the nursery imports before it makes workers; None: what training needs."""
    zygote: str = ""
    """The name of a process that nurseries can be forked of; empty: there is none."""
    guest: bool = False
    """It takes part from another machine: SIGTERM gives its workers back, and without the store it is not kept."""
    store_s: float = 10.0
    """How long it waits for a store that does not answer; then it ends, and its workers with it, unless the launcher
    that the lifeline leads to hosts the store."""
    lifeline_fd: int | None = None
    """A pipe from the launcher: when it closes everything ends. None: the job outlives its launcher."""
    ttl_s: float = 3.0
    """How long an agent may be silent towards the store before it counts as lost."""
    silence_s: float = 5.0
    """How long a worker may be silent before it is killed."""
    resend_s: float = 0.5
    """After how long something that was not acknowledged is said again."""

    @property
    def node_dir(self) -> Path:
        """Where this agent keeps its things."""
        return Path(self.run_dir) / "agents" / self.agent

    @property
    def is_hosted(self) -> bool:
        """Whether its launcher hosts the store: one that is silent is a launcher that stands still, and may go on."""
        return self.lifeline_fd is not None and not self.guest and self.store.startswith(("unix:", "tcp:"))

    @property
    def prefix(self) -> str:
        """The beginning of all keys of this run of the job."""
        return f"melodeon/{self.job}/{self.run}/"

    def token(self) -> str:
        """The secret, from where it is kept."""
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE, "")
        try:
            return Path(self.token_file).read_text().strip()
        except FileNotFoundError:
            raise NotFound(f"job {self.job} has ended: {self.token_file} is gone with its launcher") from None

    def nursery_command(self) -> list[str]:
        """How this agent's nursery is started."""
        lifeline = [] if self.lifeline_fd is None else ["--lifeline", str(self.lifeline_fd)]
        preload = [] if self.preload is None else ["--preload", ",".join(self.preload)]
        return [sys.executable, "-m", "melodeon.runtime.nursery", self.socket, *lifeline, *preload]


def read_config(path: Path) -> AgentConfig:
    """Read an agent's file."""
    return read_handed(path, AgentConfig, what="agent", writer="a launcher")


def write_config(path: Path, config: AgentConfig) -> None:
    """Write an agent's file."""
    hand(path, config)
