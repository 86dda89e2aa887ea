"""Machines to run a job on: each with a network, processes and a name of its own, on one switch. Needs root.

A machine is a set of the kernel's namespaces, kept by one process, its first. To end that process is to cut the power:
the kernel ends all others with it. To take the switch's port down is to pull the cable: nobody is told.
"""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.live.system import ROOT
from tests.packages import find_programs

NETWORK, SWITCH = "10.77.0", 254


class Host:
    """One machine."""

    def __init__(self, folder: Path, number: int, stack: ExitStack) -> None:
        self.address = f"{NETWORK}.{number}"
        self.folder = folder / f"host{number}"
        """Of this machine alone; all else that tests use is seen by every one."""
        self.folder.mkdir(mode=0o700)
        spaces = ["--net", "--pid", "--fork", "--mount-proc", "--mount", "--uts", "--kill-child"]
        self._keeper = stack.enter_context(
            subprocess.Popen(
                # It says when it is there, and stays until it is ended or its test is.
                [*find_programs("unshare"), *spaces, "sh", "-c", "echo there; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        self._started: list[subprocess.Popen[bytes]] = []
        stack.callback(self._clear)
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"there\n"
        self.pid = inside(self._keeper)
        """The machine's first process, as the tests see it."""

    def command(self, *command: str) -> list[str]:
        """A command as this machine runs it."""
        return [*find_programs("nsenter"), "-t", str(self.pid), "-p", "-m", "-n", "-u", f"--wd={ROOT}", *command]

    def ip(self, *words: str) -> None:
        """Change its network; processes keep the numbers that the tests know them by."""
        subprocess.run([*find_programs("nsenter"), "-t", str(self.pid), "-n", *find_programs("ip"), *words], check=True)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process on it, which writes to `log(name)`."""
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}
        with self.log(name).open("ab") as log:
            self._started.append(subprocess.Popen(self.command(*command), env=env, stdout=log, stderr=log))
        return self._started[-1]

    def log(self, name: str) -> Path:
        """What a process of this machine has said."""
        return self.folder / f"{name}.log"

    def power_off(self) -> None:
        """All of it is gone at once."""
        self._keeper.send_signal(signal.SIGKILL)
        self._keeper.wait()

    def _clear(self) -> None:
        self.power_off()
        for process in self._started:
            process.wait()


def inside(process: subprocess.Popen[bytes]) -> int:
    """The process on the machine behind the one that has entered it for it."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


class Hosts:
    """Some machines on one switch."""

    def __init__(self, folder: Path, count: int) -> None:
        self._stack, self._folder = ExitStack(), folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._switch = Host(folder, SWITCH, self._stack)
            self._switch.ip("link", "add", "switch", "type", "bridge")
            self._switch.ip("link", "set", "switch", "up")
            self.all: list[Host] = []
            for _ in range(count):
                self.add()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self) -> Host:
        """One more."""
        number = len(self.all) + 1
        assert number < SWITCH, f"{NETWORK}.0 has no more addresses"
        host = Host(self._folder, number, self._stack)
        self.all.append(host)
        self._plug_in(number, host)
        return host

    def cut(self, host: Host) -> None:
        """Pull its cable."""
        self._switch.ip("link", "set", self._port(host), "down")

    def mend(self, host: Host) -> None:
        """Put it back."""
        self._switch.ip("link", "set", self._port(host), "up")

    def _plug_in(self, number: int, host: Host) -> None:
        self._switch.ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self._switch.ip("link", "set", f"port{number}", "master", "switch", "up")
        host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
        for name in ("eth0", "lo"):
            host.ip("link", "set", name, "up")

    def _port(self, host: Host) -> str:
        return f"port{self.all.index(host) + 1}"
