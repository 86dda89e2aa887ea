"""The workers of one view, connected: small exact messages between them, and the collectives that carry tensors.

The process group is built directly rather than through `init_process_group`, so that the script keeps torch.distributed
for itself and the group of the next view can be built beside this one. Everything that may block on a peer happens on
the group's carrier thread; a caller on another thread waits for it or for the alarm.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from melodeon.core.errors import WorkerLost
from melodeon.core.launch import Launch
from melodeon.runtime.carrier import Alarm, Carrier, Pending

T = TypeVar("T")

_LENGTH = struct.Struct("<Q")
_SHORT = 504
"""A payload of at most so many bytes travels beside its length."""
_NEVER = 0xFFFF
"""A tag that nobody gives anything by."""
_AT_ONCE = timedelta(milliseconds=1)
TIMEOUT_S = 300.0
"""How long a worker waits for a silent peer before it gives the step up, where nobody can sound an alarm."""


@contextmanager
def peer_errors(doing: str) -> Iterator[None]:
    """Turn what the transport raises when a peer is gone into one sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WorkerLost(f"another worker of the job is gone or silent (while {doing}: {reason[:160]})") from error


Parcel = tuple[torch.Tensor, int, int]
"""A tensor, the worker that it goes to or comes from, and the tag that both know it by."""


class Underway(Protocol):
    """A parcel on its way."""

    def wait(self) -> object:
        """Block until it has left, or has come."""


class Group:
    """Worker `rank` of `size` connected workers. A group of one sends nothing."""

    def __init__(
        self, rank: int, size: int, process_group: Any = None, store: Any = None, alarm: Alarm | None = None
    ) -> None:
        self.rank = rank
        self.size = size
        self.alarm = alarm
        """Sounds when the view of this group is out of date; None where views never change."""
        self.store = store
        """Where the workers met; others may meet there too, under a prefix of their own."""
        # torch's stubs do not know the methods of a bare process group, hence Any; it stays inside this class.
        self._process_group = process_group
        self._held: dict[str, Callable[[], object]] = {}

    @classmethod
    def connect(cls, launch: Launch, timeout_s: float = TIMEOUT_S) -> "Group":
        """Meet the other workers of this generation through the launcher's rendezvous file."""
        group = cls(launch.worker, launch.num_workers)
        if launch.num_workers > 1:
            assert launch.rendezvous is not None, "a launcher of several workers names their rendezvous"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            with peer_errors("meeting"):
                files = dist.FileStore(launch.rendezvous, launch.num_workers)  # type: ignore[attr-defined]
            group.meet(files, launch.generation, timeout_s)
        return group

    def meet(self, store: Any, generation: int, timeout_s: float = TIMEOUT_S, *, host: str = "") -> None:
        """Connect with the others of `generation` who come to `store`; `host` is the address they reach this one at."""
        gloo: Any = dist.ProcessGroupGloo
        with peer_errors("meeting"):
            self.store = dist.PrefixStore(f"generation-{generation}/", store)  # type: ignore[attr-defined]
            if not host:
                self._process_group = gloo(self.store, self.rank, self.size, timedelta(seconds=timeout_s))
                return
            options = gloo._Options()
            options._timeout = timedelta(seconds=timeout_s)
            options._devices = [gloo.create_device(hostname=host)]
            self._process_group = gloo(self.store, self.rank, self.size, options)

    @cached_property
    def carrier(self) -> Carrier:
        """The thread that talks to the others."""
        return Carrier()

    def call(self, call: Callable[..., T], *args: Any) -> T:
        """Make a call that may block on a peer: on the carrier, waiting for it or for the alarm."""
        if self.alarm is None or self.carrier.here:
            return call(*args)
        return self.wait(self.carrier.submit(call, *args))

    def wait(self, pending: Pending[T]) -> T:
        """What was submitted to the carrier, or ViewOutdated."""
        return pending.result(self.alarm)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        if self.size > 1:
            self.call(self._barrier)

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        """Overwrite `tensor` with the sum (in gloo's own order) or the maximum over all workers."""
        if self.size > 1:
            self.call(self._all_reduce, tensor, maximum)

    def give_all(self, parcels: Sequence[Parcel]) -> list[Underway]:
        """Begin to send tensors to single workers, who take them by the same tags. On the carrier only."""
        with peer_errors("exchanging gradients"):
            return [self._process_group.send([tensor], worker, tag) for tensor, worker, tag in parcels]

    def take_all(self, parcels: Sequence[Parcel]) -> list[Underway]:
        """Begin to overwrite tensors with what single workers give by these tags. On the carrier only."""
        with peer_errors("exchanging gradients"):
            return [self._process_group.recv([tensor], worker, tag) for tensor, worker, tag in parcels]

    def wait_all(self, underway: Sequence[Underway]) -> None:
        """Wait until all have left or come. On the carrier only."""
        with peer_errors("exchanging gradients"):
            for parcel in underway:
                parcel.wait()

    def hang_up(self) -> None:
        """Nothing more will come from this worker: have those who wait for it know. On the carrier only.

        Where views change, the master tells them. gloo has no word for it, but breaks all connections of a worker that
        has waited too long for anything.
        """
        if self.alarm is None:
            for worker in range(self.size):
                if worker != self.rank:
                    with suppress(RuntimeError):  # lost, or waited for too long, as it was meant
                        self._process_group.recv([torch.empty(1)], worker, _NEVER).wait(_AT_ONCE)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite `tensor` with the root's."""
        self.broadcast_all([(tensor, root)])

    def broadcast_all(self, tensors: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Overwrite each tensor with its root's, all of them under way at once."""
        if self.size > 1:
            self.call(self._broadcast_all, tensors)

    def share_bytes(self, payload: bytes, root: int) -> bytes:
        """The root's payload, on every worker."""
        if self.size == 1:
            return payload
        return self.call(self._share_bytes, payload, root)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every worker's payload, in worker order, on every worker."""
        if self.size == 1:
            return [payload]
        return self.call(self._gather_bytes, payload)

    def gather_in_turn(self, payload: bytes) -> list[bytes]:
        """As `gather_bytes`, behind what is under way: two threads must not speak in one group at once."""
        return [payload] if self.size == 1 else self.wait(self.carrier.submit(self.gather_bytes, payload))

    def hold(self, name: str, release: Callable[[], object]) -> None:
        """Have something given back when another of this name takes its place, or else when this group is closed."""
        before = self._held.pop(name, None)
        self._held[name] = release
        if before is not None:
            before()

    def close(self) -> None:
        """Let go of the connections."""
        held = [self._process_group]
        self._process_group = None
        if self.alarm is not None:
            # The connections' end waits for what is under way with a silent peer, and large memory takes a tenth of a
            # second to give back: the carrier is left to that, while this thread goes on in another view. It may be in
            # the middle of making what it gives back then.
            self.carrier.close(self._give_back, held.clear)
            return
        self._give_back()
        held.clear()
        if "carrier" in self.__dict__:
            self.carrier.close()

    def _give_back(self) -> None:
        while self._held:
            _, release = self._held.popitem()
            release()

    # -- on the carrier ----------------------------------------------------------------------------------------------

    def _barrier(self) -> None:
        with peer_errors("waiting for the others"):
            self._process_group.barrier().wait()

    def _all_reduce(self, tensor: torch.Tensor, maximum: bool) -> None:
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        with peer_errors("summing over workers"):
            self._process_group.allreduce([tensor], options).wait()

    def _broadcast_all(self, tensors: Sequence[tuple[torch.Tensor, int]]) -> None:
        works = []
        with peer_errors("taking over shared values"):
            for tensor, root in tensors:
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = root, 0
                works.append(self._process_group.broadcast([tensor], options))
            for work in works:
                work.wait()

    def _share_bytes(self, payload: bytes, root: int) -> bytes:
        length = torch.tensor([len(payload)], dtype=torch.int64)
        self._broadcast_all([(length, root)])
        body = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == root and payload:
            body.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        if body.numel():
            self._broadcast_all([(body, root)])
        return body.numpy().tobytes()

    def _gather_bytes(self, payload: bytes) -> list[bytes]:
        # Short ones go with their lengths: on busy cores every word that is waited for costs a millisecond.
        letters = self._post(_LENGTH.pack(len(payload)) + payload[:_SHORT], _LENGTH.size + _SHORT)
        lengths = [_LENGTH.unpack_from(letter)[0] for letter in letters]
        bodies = [letter[_LENGTH.size :] for letter in letters]
        if max(lengths) > _SHORT:
            bodies = self._all_gather(payload, max(lengths))
        return [body[:length] for body, length in zip(bodies, lengths, strict=True)]

    def _post(self, letter: bytes, size: int) -> list[bytes]:
        """Everybody's letter, sent straight to each: gloo's gathering goes around a ring, one worker after another."""
        copies = torch.frombuffer(bytearray(letter.ljust(size, b"\0") * self.size), dtype=torch.uint8)
        letters = torch.empty_like(copies)
        with peer_errors("gathering from the others"):
            self._process_group.alltoall_base(letters, copies, [], [], dist.AllToAllOptions()).wait()
        return [row.tobytes() for row in letters.view(self.size, size).numpy()]

    def _all_gather(self, payload: bytes, size: int) -> list[bytes]:
        padded = torch.frombuffer(bytearray(payload.ljust(size, b"\0")), dtype=torch.uint8)
        bodies = [torch.empty(size, dtype=torch.uint8) for _ in range(self.size)]
        with peer_errors("gathering from the others"):
            self._process_group.allgather([bodies], [padded]).wait()
        return [body.numpy().tobytes() for body in bodies]
