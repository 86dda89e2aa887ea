"""A job's state copied to newcomers against raw copies of as many bytes, on the same processes in one run.

The state is a GPT's with AdamW: parameters, two moments and a step counter each. The peer on one host is a memory copy
(one `memcpy` per reader, all readers at once); between hosts it is a socket (`sendall` and `recv_into` of a flat buffer
over loopback, one connection a reader). All copies go into memory that has been touched, but for "new tensors", where
the receiver has the parameters alone and the moments are allocated. The ratio is speed, ours over the peer's.

    python benchmarks/replication.py [--megabytes 100,1200] [--readers 1,2] [--repeats 9]
"""

import argparse
import ctypes
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import progress, report
from _processes import run_processes

from melodeon.core.launch import Launch
from melodeon.core.replication import Copy, Distance
from melodeon.runtime.codec import view_bytes
from melodeon.runtime.group import Group
from melodeon.runtime.transfer import Door, Received, describe, furnish, replicate

PEERS = {
    "shared memory": "memcpy",
    "shared memory, checked": "memcpy",
    "shared memory, new tensors": "memcpy",
    "shared memory, new tensors furnished before": "memcpy",
    "sockets": "raw socket",
    "sockets, checked": "raw socket",
}
"""What is measured, and against what."""


def make_state(num_bytes: int, fill: bool) -> dict[str, Any]:
    """A state of about `num_bytes`."""
    width = 768 if num_bytes > 400_000_000 else 256
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (width,), (width,)]
    block_bytes = 12 * width * width * 4 * 3
    params, moments = {}, {}
    for block in range(max(1, round(num_bytes / block_bytes))):
        for index, shape in enumerate(shapes):
            number = len(params)
            make: Callable[..., torch.Tensor] = torch.rand if fill else torch.zeros
            params[f"blocks.{block}.{index}"] = make(shape)
            moments[number] = {"step": make(()), "exp_avg": make(shape), "exp_avg_sq": make(shape)}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(moments)}]
    return {"models": {"0": params}, "optimizers": {"0": {"state": moments, "param_groups": groups}}, "step": 7}


def without_moments(state: dict[str, Any]) -> dict[str, Any]:
    """What a newcomer has built itself."""
    return {"models": state["models"]}


def size_of(state: dict[str, Any]) -> int:
    """Bytes of its tensors."""
    moments = state["optimizers"]["0"]["state"].values()
    tensors = [*state["models"]["0"].values(), *(tensor for moment in moments for tensor in moment.values())]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Worker:
    """One process of a measurement: rank 0 holds the state, the others read it."""

    def __init__(self, group: Group, megabytes: int) -> None:
        self.group = group
        self.state = make_state(megabytes * 1_000_000, fill=group.rank == 0)
        self.num_bytes = size_of(self.state)
        self.source = torch.ones(self.num_bytes, dtype=torch.uint8)
        self.target = torch.zeros(self.num_bytes, dtype=torch.uint8)
        self.description = group.share_bytes(describe(self.state), root=0)
        self.sockets = self._connect()

    def _connect(self) -> list[socket.socket]:
        """Raw connections from the holder to every reader."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = self.group.share_bytes(str(server.getsockname()[1]).encode(), root=0)
            if self.group.rank:
                return [socket.create_connection(("127.0.0.1", int(port)))]
            return [server.accept()[0] for _ in range(self.group.size - 1)]

    def memcpy(self) -> None:
        """A raw copy on every reader."""
        if self.group.rank:
            ctypes.memmove(self.target.data_ptr(), self.source.data_ptr(), self.num_bytes)

    def raw_socket(self) -> None:
        """A raw transfer to every reader."""
        if self.group.rank:
            view = view_bytes(self.target)
            while view:
                view = view[self.sockets[0].recv_into(view) :]
            self.sockets[0].sendall(b".")
            return

        def send(to: socket.socket) -> None:
            to.sendall(view_bytes(self.source))
            to.recv(1)

        threads = [threading.Thread(target=send, args=(to,)) for to in self.sockets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def ours(self, distance: Distance, into: object, checked: bool, door: Door, invitations: dict[int, bytes]) -> Any:
        """A replication; the door was opened and the invitations shared while the group was connected."""
        copies = [Copy(source=0, target=rank, round=0, distance=distance) for rank in range(1, self.group.size)]
        state = None if self.group.rank else self.state
        return replicate(self.group.rank, copies, door, invitations, state=state, into=into, checked=checked)

    def measure(self, name: str) -> float:
        """Seconds of one copy on this process, all starting together."""
        door = Door()
        invitations = dict(enumerate(self.group.gather_bytes(door.invitation)))
        distance = Distance.NETWORK if "socket" in name else Distance.HOST
        into: object = None
        if self.group.rank:
            into = without_moments(self.state) if "new tensors" in name else self.state
            into = furnish(self.description, into) if "furnished" in name else into
        self.group.barrier()
        start = time.perf_counter()
        got = None
        if name in ("memcpy", "raw socket"):
            self.memcpy() if name == "memcpy" else self.raw_socket()
        else:
            got = self.ours(distance, into, "checked" in name, door, invitations)
        seconds = time.perf_counter() - start
        door.close()
        assert got is None or isinstance(got, Received)
        return seconds


def work(rank: int, size: int, path: str, megabytes: int, repeats: int, output: str) -> None:
    """One process; process 0 writes a line."""
    torch.set_num_threads(1)
    group = Group.connect(Launch(worker=rank, num_workers=size, rendezvous=path))
    worker = Worker(group, megabytes)
    times: dict[str, list[float]] = {name: [] for name in ("memcpy", "raw socket", *PEERS)}
    for turn in range(repeats + 1):
        for name, found in times.items():
            seconds = [json.loads(body) for body in group.gather_bytes(json.dumps(worker.measure(name)).encode())]
            if turn:  # the first one warms up
                found.append(max(seconds))
    if rank == 0:
        row = {"bytes": worker.num_bytes, "times": times}
        Path(output).write_text(json.dumps(row))


def fits(size: int, megabytes: int) -> bool:
    """Whether the processes' memory is there: each has a state, two flat buffers, and receives new tensors."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return free > size * (megabytes * 1_000_000 * 4.5 + 500_000_000)


def main() -> None:
    """Measure every case and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="100,1200")
    parser.add_argument("--readers", default="1,2")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    cases = []
    for megabytes in map(int, options.megabytes.split(",")):
        for readers in map(int, options.readers.split(",")):
            if not fits(readers + 1, megabytes):
                progress(f"{megabytes} MB with {readers} readers does not fit the free memory: left out")
                continue
            row: dict[str, Any] = json.loads(run_processes(work, readers + 1, megabytes, options.repeats))
            speeds = {name: row["bytes"] / 1e9 / statistics.median(seconds) for name, seconds in row["times"].items()}
            for name, peer in PEERS.items():
                pairs = zip(row["times"][peer], row["times"][name], strict=True)
                case = {
                    "bytes": row["bytes"],
                    "readers": readers,
                    "way": name,
                    "gb_per_s": round(speeds[name], 2),
                    "peer": peer,
                    "peer_gb_per_s": round(speeds[peer], 2),
                    "ratio": round(statistics.median(theirs / ours for theirs, ours in pairs), 3),
                }
                cases.append(case)
                progress(json.dumps(case))
    named = [case for case in cases if case["way"] == "shared memory" and case["readers"] == 1] or cases
    worst = min(named, key=lambda case: case["ratio"])
    report(
        benchmark="replication",
        metric="GB/s of a state copied to one newcomer on the same host, worst of the sizes",
        value=worst["gb_per_s"],
        peer=f"raw {worst['peer']}",
        peer_value=worst["peer_gb_per_s"],
        ratio=worst["ratio"],
        cases=cases,
    )


if __name__ == "__main__":
    main()
