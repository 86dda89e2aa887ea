"""Asking a zygote for a nursery: what is said, and by whom it may be.

A zygote is a process that has imported torch and waits. A nursery that is forked off it is there in milliseconds, where
a fresh one imports for seconds; apart from that nobody can tell them apart. The two ends find each other by a name
without a file (Linux's abstract sockets) and trust nothing but the kernel's word that the other is the same user, or
was started by root.

A zygote has read its environment when it started. Whoever needs another one, in what is read that early, is refused and
starts a nursery the long way.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from melodeon.coord import failpoint
from melodeon.coord.wire import FrameError, Frames, pack

PATIENCE_S = 10.0
"""How long to wait for a zygote, which may still be importing: about as long as doing that oneself can take."""
EARLY = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "TZ", "HOME"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "NPY_", "NUMPY_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "TRITON_", "NVIDIA_", "CUDA_MODULE_", "CUBLAS", "CUDNN", "GLOO_"),
    failpoint.VARIABLE,
)
"""How the variables begin that an interpreter, the linker, numpy or torch may read while they load (and we)."""
BACKLOG = 128
"""Those who may wait while it imports."""
_CREDENTIALS = struct.Struct("3i")


class Sprout(msgspec.Struct, frozen=True, kw_only=True, tag="sprout"):
    """Asks for a nursery. Its log, and then its lifeline if it has one, come along as descriptors."""

    python: str
    """The interpreter that it would have been started with."""
    socket: str
    """Its agent's."""
    preload: tuple[str, ...] | None = None
    """As in an agent's file."""
    env: dict[str, str]
    """Its whole environment."""
    workdir: str


class Sprouted(msgspec.Struct, frozen=True, kw_only=True, tag="sprouted"):
    """The answer: the new process, or why there is none."""

    pid: int = 0
    refused: str = ""


def read_early(env: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what must be there before anything is imported."""
    return {name: value for name, value in env.items() if name.startswith(EARLY)}


def peer(call: socket.socket) -> tuple[int, int]:
    """The process at the other end and its user, by the kernel's word."""
    found = call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def listen(name: str) -> socket.socket:
    """The socket that a zygote is to be given: from now on whoever asks for it waits until it is there."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(_address(name))
    server.listen(BACKLOG)
    return server


async def sprout(name: str, request: Sprout, fds: Sequence[int], *, patience_s: float = PATIENCE_S) -> Sprouted:
    """A nursery of the zygote of that name, or why it cannot be had.

    One that is made after all when nobody waits any more calls an agent that has another, and is sent away by it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
        call.setblocking(False)
        try:
            async with asyncio.timeout(patience_s):
                return await _ask(call, name, request, fds)
        except TimeoutError:
            return Sprouted(refused=f"it has not answered for {patience_s:g} s")
        except (OSError, FrameError) as error:
            return Sprouted(refused=f"it cannot be asked ({error})")


async def _ask(call: socket.socket, name: str, request: Sprout, fds: Sequence[int]) -> Sprouted:
    loop = asyncio.get_running_loop()
    call.connect(_address(name))
    if peer(call)[1] not in (0, os.geteuid()):
        return Sprouted(refused="another user has taken its name")
    data = pack(request)
    if rest := data[socket.send_fds(call, [data], list(fds)) :]:
        await loop.sock_sendall(call, rest)
    frames = Frames(Sprouted)
    while heard := await loop.sock_recv(call, 1 << 12):
        for answer in frames.feed(heard):
            return answer
    return Sprouted(refused="it has hung up")


def _address(name: str) -> str:
    return f"\0melodeon-{name}"


def request_for(address: str, env: Mapping[str, str], preload: tuple[str, ...] | None) -> Sprout:
    """What to say so that the nursery is as one that this process would start itself."""
    return Sprout(python=sys.executable, socket=address, preload=preload, env=dict(env), workdir=str(Path.cwd()))
