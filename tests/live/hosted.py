"""A job that one of several machines runs, and that the others take part in."""

import os
import subprocess
import sys
from pathlib import Path

from melodeon.coord.client import JobHandle
from melodeon.coord.marks import started
from melodeon.coord.registry import Entry
from tests.live.hosts import Host
from tests.live.system import System

GUEST = "guest"


class Hosted(System):
    """A job whose launcher is on one of the machines, and that takes the others in."""

    spokesman = "node0"
    """The agent that wishes are told to."""

    def __init__(self, folder: Path, host: Host, *args: str, **options: object) -> None:
        super().__init__(folder, "job", *args, enter=host.command(), listen=host.address, **options)

    def _find(self) -> bool:
        socket = self.run_dir / "agents" / self.spokesman / "agent.sock"
        if socket.exists():
            # Machines have lists of jobs of their own, which tell processes by their machine's numbers.
            mine = {"pid": os.getpid(), "started": started(os.getpid()) or 0}
            entry = Entry(id="job", run_dir=str(self.run_dir), agents=(str(socket),), created="", **mine)
            self._handle = JobHandle(entry)
        return socket.exists()

    def speak_to(self, agent: str, process: subprocess.Popen[bytes]) -> None:
        """The launcher is gone: this one knows the job as well."""
        self.spokesman, self._handle, self.process = agent, None, process

    def stopped(self) -> dict[int, str]:
        """End the job; what it has trained until then."""
        assert self.handle.stop().ok
        self.end()
        return self.receipt()

    def visit(self, host: Host, *options: str, name: str = GUEST) -> subprocess.Popen[bytes]:
        """`melodeon agent` on another machine."""
        command = [sys.executable, "-m", "melodeon", "agent", str(self.run_dir), "--name", name, "--slots", "2"]
        return host.start(GUEST, *command, *options)

    def grow(self, count: int) -> None:
        """Have workers on the guest."""
        self.until(lambda: GUEST in self.present())
        assert self.handle.scale_out(count, GUEST).ok
        assert [worker["agent"] for worker in self.members()].count(GUEST) == count

    def present(self) -> list[str]:
        """The agents that take part."""
        return [agent["agent"] for agent in self.status()["agents"] if not agent["lost"]]
