"""States and worker processes for the tests of transfers."""

import contextlib
import os
import signal
import socket
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from melodeon.core.replication import Copy, Distance
from melodeon.runtime import transfer_layout, transfer_link
from melodeon.runtime.digest import digest_state
from melodeon.runtime.transfer import Door, replicate
from tests.runtime.loop.crew import CONTEXT

LIMIT_S = 30.0


class Outdated(Exception):
    """What a worker's `check` raises when the view is over."""


def copy(source: int, target: int, turn: int = 0, local: bool = True, after: Sequence[int] = ()) -> Copy:
    distance = Distance.HOST if local else Distance.RACK
    return Copy(source=source, target=target, round=turn, distance=distance, after=tuple(after))


def rich_state(seed: int = 0) -> dict[str, Any]:
    """Every kind of value and tensor that a state may have."""
    draw = torch.Generator().manual_seed(seed)
    tied = torch.randn(300, 200, generator=draw)
    wide = torch.randn(40, 60, generator=draw)
    image = torch.randn(2, 3, 8, 8, generator=draw)
    return {
        "models": OrderedDict({"embed": tied, "head": tied, "bf16": wide.bfloat16(), "half": wide.half()}),
        "odd": {
            "scalar": torch.tensor(3.5 + seed),
            "empty": torch.empty(0, 4),
            "bools": wide > 0,
            "ints": torch.arange(seed, seed + 1001),
            "bytes": torch.arange(7, dtype=torch.uint8) + seed,
            "complex": torch.complex(wide, -wide),
            "conj": torch.complex(wide, wide).conj(),
            "strided": wide[:, ::2],
            "transposed": wide.t(),
            "expanded": torch.randn(1, 5, generator=draw).expand(4, 5),
            "channels_last": image.to(memory_format=torch.channels_last),
            "parameter": torch.nn.Parameter(wide.clone()),
        },
        "optimizers": {0: {"step": torch.tensor(float(seed)), "exp_avg": wide * 2}, 1: defaultdict(list, a=[1])},
        "numpy": [np.arange(6, dtype=np.int32).reshape(2, 3) + seed, np.float64(0.1)],
        "plain": (1, None, True, float("nan"), float("inf"), 1 << 80, "text", b"bytes", torch.float16, (2, 3)),
        "large": torch.randn(4_000_000, generator=draw),  # more than sockets hold by themselves
    }


def alike(one: object, other: object) -> bool:
    """The same bits at the same paths."""
    return digest_state(one) == digest_state(other)


class Workers:
    """Real processes that take part in a plan; each is given `options[number]`."""

    def __init__(self, copies: Sequence[Copy], options: dict[int, dict[str, Any]]) -> None:
        self.processes: dict[int, Any] = {}
        self.pipes: dict[int, Connection] = {}
        for number in sorted({worker for each in copies for worker in (each.source, each.target)}):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_work, args=(number, list(copies), there, options.get(number, {})))
            process.start()
            there.close()
            self.processes[number], self.pipes[number] = process, here
        invitations = {number: self._take(number) for number in self.pipes}
        for pipe in self.pipes.values():
            pipe.send(invitations)

    def results(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """What these workers say at their end."""
        return [self._take(number) for number in numbers]

    def told(self, number: int) -> Any:
        """The next thing that a worker says."""
        return self._take(number)

    def tell(self, number: int) -> None:
        """The view is over; or, one that hangs may go on."""
        self.pipes[number].send("over")

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        for pipe in self.pipes.values():
            pipe.close()

    def _take(self, number: int) -> Any:
        assert wait([self.pipes[number]], timeout=LIMIT_S), f"worker {number} says nothing"
        return self.pipes[number].recv()


def _work(number: int, copies: list[Copy], pipe: Connection, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    door = Door()
    pipe.send(door.invitation)
    invitations = pipe.recv()
    if "before" in options:
        options["before"](pipe)

    def check() -> None:
        if pipe.poll():
            raise Outdated

    state = rich_state(1) if not any(each.target == number for each in copies) else None
    into = rich_state(2) if options.get("into") else None
    said: dict[str, Any] = {"error": None}
    try:
        received = replicate(number, copies, door, invitations, state=state, into=into, check=check)
        if received is not None:
            said["alike"] = alike(received.state, rich_state(1))
            said["in_place"] = sorted(received.in_place)
    except Exception as error:  # noqa: BLE001 - the test is told, whatever it was
        said |= {"error": type(error).__name__, "text": str(error), "at": time.monotonic()}
    pipe.send(said)
    pipe.recv()  # stay, so that only the death of others breaks connections


def _at_piece(number: int, act: Callable[[], None]) -> None:
    """Do something when this worker is about to send or fill its `number`th piece."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                act()
            return real(*args, **options)

        return call

    memory = transfer_layout.Memory
    for name in ("give", "take", "view"):
        setattr(memory, name, counted(getattr(memory, name)))


def die_in_the_middle(pipe: Connection) -> None:
    def die() -> None:
        pipe.send(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    _at_piece(14, die)


def hang_in_the_middle(pipe: Connection) -> None:
    def hang() -> None:
        pipe.send(time.monotonic())
        pipe.recv()

    _at_piece(14, hang)


def die_before_calling(pipe: Connection) -> None:
    pipe.send(time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_child_and_die(pipe: Connection) -> None:
    """A data loader's process outlives its worker."""

    def act() -> None:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(EOFError):
                pipe.recv()  # lives on until the test is over
            os._exit(0)
        pipe.send(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    _at_piece(14, act)


def without_local_sockets(pipe: Connection) -> None:
    transfer_link._connect_local = lambda name: None


def strangers_call(invitation: bytes, hello: bytes) -> socket.socket:
    """Somebody who found the port."""
    invited = transfer_link.msgspec.msgpack.decode(invitation, type=transfer_link._Invitation)
    caller = socket.create_connection((invited.address, invited.port))
    caller.sendall(hello)
    return caller
