"""A cluster of its own for a benchmark: `melodeon serve` in a temporary folder, its jobs ended with it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from melodeon.client import Cluster
from melodeon.core.service import OVER

ROOT = Path(__file__).parents[1]


class Served:
    """The service as a process, and a client of it."""

    def __init__(self, options: Sequence[str], *, root: Path) -> None:
        self._stack = ExitStack()
        self.state = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="melodeon-bench-"))) / "state"
        self._options, self._root = options, root
        # Threads are set for the jobs by their launcher; the service itself computes nothing.
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.state.parent)}
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
            running = [job.id for job in self.client.jobs() if job.phase not in OVER]
            for job in running:
                self.client.cancel(job)
            for job in running:
                self.client.wait(job, timeout_s=60)
        finally:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self._stack.close()

    def memory_mib(self) -> float:
        """Resident memory of the service now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
