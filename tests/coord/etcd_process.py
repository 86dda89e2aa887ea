"""etcd as a process: single members and clusters that tests start, stop and start again."""

import asyncio
import contextlib
import os
import socket
import subprocess
from pathlib import Path

from tests.packages import find_programs

DEADLINE_S = 20.0
"""No test waits longer for anything; the machine is shared."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class EtcdMember:
    """One member of an etcd cluster; its data outlives a stop."""

    def __init__(self, folder: Path, name: str, ports: dict[str, tuple[int, int]]) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[name])
        self.port, self.url, self.log = ports[name][0], client, folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.command = [*find_programs("etcd"), "--name", name, "--data-dir", str(folder / name)]
        self.command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self.command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        cluster = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, (_, peer) in ports.items())
        self.command += ["--initial-cluster", cluster, "--initial-cluster-token", folder.name]
        # Leases of one second, and another leader soon.
        self.command += ["--heartbeat-interval", "50", "--election-timeout", "250"]

    def start(self) -> None:
        # etcd tells a service manager when it serves (systemd's protocol): here the test is the manager.
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind("")  # the kernel gives it an abstract name
        name = self.manager.getsockname().decode().replace("\0", "@")
        with self.log.open("ab") as log:
            environment = {**os.environ, "NOTIFY_SOCKET": name}
            self.process = subprocess.Popen(self.command, env=environment, stdout=log, stderr=log)

    async def until_ready(self) -> None:
        """It has joined its cluster and serves."""
        assert self.process is not None
        loop, news, ended = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(self.process.pid)
        for file in (self.manager.fileno(), ended):
            loop.add_reader(file, news.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await news.wait()
        finally:
            for file in (self.manager.fileno(), ended):
                loop.remove_reader(file)
            os.close(ended)
        assert self.process.poll() is None, f"etcd ended: {self.log.read_text()[-2000:]}"
        assert b"READY=1" in self.manager.recv(4096)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None
            self.manager.close()


class EtcdCluster:
    """Some members, started together."""

    def __init__(self, folder: Path, size: int) -> None:
        numbers = free_ports(2 * size)
        ports = {f"m{index}": (numbers[2 * index], numbers[2 * index + 1]) for index in range(size)}
        self.members = [EtcdMember(folder, name, ports) for name in ports]

    async def start(self) -> None:
        for member in self.members:
            member.start()
        for member in self.members:
            await member.until_ready()

    def stop(self) -> None:
        for member in self.members:
            member.stop()
