"""A cluster of its own for a benchmark: `melodeon serve` in a temporary folder, its jobs ended with it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from _common import PYTHON_PATH

from melodeon.client import Cluster
from melodeon.core.service import OVER

CANCELLING = 8
"""Cancels that are under way at once: what comes together is decided and stored together."""


class Served:
    """The service as a process, and a client of it."""

    def __init__(self, options: Sequence[str], *, root: Path) -> None:
        self._stack = ExitStack()
        self.state = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="melodeon-bench-"))) / "state"
        self._options, self._root = options, root
        # Threads are set for the jobs by their launcher; the service itself computes nothing.
        self._env = {**os.environ, "PYTHONPATH": PYTHON_PATH, "XDG_RUNTIME_DIR": str(self.state.parent)}
        self.process: subprocess.Popen[str]
        self.url = self.login_url = ""
        self.client: Cluster

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "melodeon", "serve", "--json", "--port", "0", "--state", str(self.state)]
        self.process = subprocess.Popen(
            [*command, "--root", str(self._root), *self._options], env=self._env, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the service did not start: it ended with {self.process.wait()}")
        said = json.loads(line)
        self.url, self.login_url = said["url"], said["login_url"]
        self.client = self._stack.enter_context(Cluster(state=self.state))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for node in self.client.nodes():
                self.client.set_node(node.id, drained=True)  # or every job that is cancelled would start another
            live = [job.id for job in self.client.jobs() if job.phase not in OVER]
            with ThreadPoolExecutor(CANCELLING) as hands:
                told = list(hands.map(self.client.cancel, live))
            for job in told:
                if job.phase not in OVER:
                    self.client.wait(job.id, timeout_s=60)
        finally:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self._stack.close()

    def cpu_s(self) -> float:
        """Seconds of processor time that the service has taken so far, its children not counted."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Resident memory of the service now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
