"""A real zygote in a test, and the processes that are forked of it."""

import asyncio
import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from melodeon.coord.sprout import Sprout, Sprouted, listen, request_for, sprout

ENV = {**os.environ, "PYTHONUNBUFFERED": "1"}


class Forked:
    """A process that is not our child, as far as a `Popen` can be had of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = os.pidfd_open(pid)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> None:
        ready, _, _ = select.select([self._ended], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, number)


class Zygote:
    """One that runs."""

    def __init__(self, *args: str, stdout: int | None = None, **env: str) -> None:
        self.name = f"test-{secrets.token_hex(8)}"
        self.lifeline, self.held = os.pipe()
        with listen(self.name) as server:
            fds = (server.fileno(), self.lifeline)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "melodeon.runtime.zygote", *map(str, fds), *args],
                env={**ENV, **env},
                stdout=stdout,
                pass_fds=fds,
                start_new_session=True,
            )

    def ask(self, folder: Path, fds: list[int] | None = None, **fields: Any) -> Sprouted:
        """Ask as an agent in that folder would."""
        request: Sprout = msgspec.structs.replace(
            request_for(str(folder / "agent.sock"), ENV, None), **{"workdir": str(folder), **fields}
        )
        with (folder / "nursery.err").open("ab") as log:
            return asyncio.run(sprout(self.name, request, [log.fileno()] if fds is None else fds, patience_s=60))

    def close(self) -> None:
        os.close(self.held)
        self.process.wait(20)
        os.close(self.lifeline)


@contextlib.contextmanager
def zygote(*args: str, stdout: int | None = None, **env: str) -> Iterator[Zygote]:
    """`with zygote() as it:` ends it by closing its lifeline."""
    it = Zygote(*args, stdout=stdout, **env)
    try:
        yield it
    finally:
        it.close()
