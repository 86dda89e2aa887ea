"""Keeping a zygote: the process that a controller's jobs fork their nurseries of, so that they start at once.

It is a favour and nothing depends on it: a job that cannot have it imports torch itself. One that has died is replaced
when the next job is started.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from melodeon.backends.local import worker_env
from melodeon.coord.sprout import listen
from melodeon.core.determinism import DEFAULT, DEFAULT_THREADS
from melodeon.core.launch import VARIABLE, Launch


class Warmth:
    """A zygote for jobs at the default level, of the operating system's user `user` if one is named."""

    def __init__(self, env: Mapping[str, str], log: Path, *, user: str = "") -> None:
        env = worker_env(Launch(determinism=DEFAULT, threads=DEFAULT_THREADS), {}, env)
        self._env = {name: value for name, value in env.items() if name != VARIABLE}
        self._log, self._user = log, user
        self._name = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: tuple[int, int] | None = None

    def name(self) -> str:
        """By which it is found; one is started if there is none."""
        if self._process is None or self._process.poll() is not None:
            self._name = f"zygote-{secrets.token_hex(8)}"
            with listen(self._name) as server:  # nobody else keeps it: asking a dead one fails at once
                self._process = self._start(server.fileno())
        return self._name

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for fd in self._lifeline or ():
            os.close(fd)
        self._process, self._lifeline = None, None

    def _start(self, server: int) -> subprocess.Popen[bytes]:
        if self._lifeline is None:
            # Only this process holds the write end: when it is gone, however it went, so is the zygote.
            self._lifeline = os.pipe()
        fds = (server, self._lifeline[0])
        user = ["--user", self._user] if self._user else []
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "melodeon.runtime.zygote", *map(str, fds), *user],
                cwd="/",  # nothing is imported from the folder in which the controller happens to be
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
