"""The workers of one view, connected: small exact messages between them, and the collectives that carry tensors.

The process group is built directly rather than through `init_process_group`, so that the script keeps torch.distributed
for itself and the group of the next view can be built beside this one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from melodeon.core.errors import WorkerLost
from melodeon.core.launch import Launch

TIMEOUT_S = 300.0
"""How long a worker waits for a silent peer before it gives the step up."""


@contextmanager
def peer_errors(doing: str) -> Iterator[None]:
    """Turn what the transport raises when a peer is gone into one sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WorkerLost(f"another worker of the job is gone or silent (while {doing}: {reason[:160]})") from error


class Group:
    """Worker `rank` of `size` connected workers. A group of one sends nothing."""

    def __init__(self, rank: int, size: int, process_group: Any = None, store: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.store = store
        """Where the workers met; others may meet there too, under a prefix of their own."""
        # torch's stubs do not know the methods of a bare process group, hence Any; it stays inside this class.
        self._process_group = process_group

    @classmethod
    def connect(cls, launch: Launch, timeout_s: float = TIMEOUT_S) -> "Group":
        """Meet the other workers of this generation through the launcher's rendezvous file."""
        if launch.num_workers == 1:
            return cls(0, 1)
        assert launch.rendezvous is not None, "a launcher of several workers names their rendezvous"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with peer_errors("meeting"):
            files = dist.FileStore(launch.rendezvous, launch.num_workers)  # type: ignore[attr-defined]
            store = dist.PrefixStore(f"generation-{launch.generation}/", files)  # type: ignore[attr-defined]
            built = dist.ProcessGroupGloo(store, launch.worker, launch.num_workers, timedelta(seconds=timeout_s))
        return cls(launch.worker, launch.num_workers, built, store)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        if self.size > 1:
            with peer_errors("waiting for the others"):
                self._process_group.barrier().wait()

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        """Overwrite `tensor` with the sum (in gloo's own order) or the maximum over all workers."""
        if self.size > 1:
            options: Any = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
            with peer_errors("summing over workers"):
                self._process_group.allreduce([tensor], options).wait()

    def all_to_all(self, taken: torch.Tensor, given: torch.Tensor, take: Sequence[int], give: Sequence[int]) -> None:
        """Send `give[w]` elements of `given` to each worker w, and fill `taken` with `take[w]` from each."""
        with peer_errors("exchanging gradients"):
            self._process_group.alltoall_base(taken, given, list(take), list(give)).wait()

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite `tensor` with the root's."""
        self.broadcast_all([(tensor, root)])

    def broadcast_all(self, tensors: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Overwrite each tensor with its root's, all of them under way at once."""
        if self.size == 1:
            return
        works = []
        with peer_errors("taking over shared values"):
            for tensor, root in tensors:
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = root, 0
                works.append(self._process_group.broadcast([tensor], options))
            for work in works:
                work.wait()

    def share_bytes(self, payload: bytes, root: int) -> bytes:
        """The root's payload, on every worker."""
        if self.size == 1:
            return payload
        length = torch.tensor([len(payload)], dtype=torch.int64)
        self.broadcast(length, root)
        body = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == root and payload:
            body.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        if body.numel():
            self.broadcast(body, root)
        return body.numpy().tobytes()

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every worker's payload, in worker order, on every worker."""
        return [self.share_bytes(payload, root) for root in range(self.size)]

    def close(self) -> None:
        """Let go of the connections."""
        self._process_group = None
