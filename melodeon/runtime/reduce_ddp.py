"""`order="ddp"`: bit for bit what stock DistributedDataParallel over V gloo processes computes.

Gradients times 1/V go into DDP's own buckets, one flat row per virtual worker, and are summed in gloo's ring order.
The price of another framework's order is memory: one set of gradients per local virtual worker.
"""

import json
from collections.abc import Sequence

import torch

from melodeon.core.assignment import Assignment
from melodeon.runtime.buckets import Bucket, ddp_buckets
from melodeon.runtime.exchange import Exchange, open_exchange
from melodeon.runtime.folds import Fold, RingFold
from melodeon.runtime.group import Group
from melodeon.runtime.guard import Grads, Marks
from melodeon.runtime.reduce import Header, Reducer


class DdpReducer(Reducer):
    """Sums as DDP over V processes does."""

    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        group: Group,
        assignment: Assignment,
        *,
        models: Sequence[Sequence[int]] | None = None,
        find_unused: bool = False,
        arrival: Sequence[int] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        super().__init__(params, names, group, assignment)
        self._models = models if models is not None else [range(len(self.params))]
        """The indices of each wrapped model's parameters: a stock script wraps every model by itself."""
        self._virtual_workers = assignment.virtual_workers
        self._find_unused = find_unused
        self.arrival = None if arrival is None else list(arrival)
        """The order in which virtual rank 0's gradients arrived in the first step: DDP cuts its buckets by it."""
        self._first_arrival: list[int] = []
        self._used = [False] * len(self.params)
        self._take(exchange or self._open())

    def _open(self) -> Exchange:
        buckets = ddp_buckets(self.params, self._models, self.arrival, find_unused=self._find_unused)
        return ddp_exchange(buckets, self.group, self.assignment)

    @property
    def root_scale(self) -> float:
        """DDP scales the gradients, not the loss."""
        return 1.0

    def before(self, rank: int, marks: Marks, *, first: bool, final: bool) -> None:  # noqa: ARG002
        """Send buckets during the last backward."""
        if first and rank == self.ranks[0]:
            self._used = [False] * len(self.params)
            self._go_last()
        self._listen(sending=final and rank == self.ranks[-1])

    def after(self, rank: int) -> Grads | None:
        """Scale the gradients into the virtual worker's row."""
        if rank == 0 and self.arrival is None:
            self._first_arrival = list(self._arrived)
        if rank == self.ranks[-1]:
            self._launch_rest()
            return None
        with torch.no_grad():
            for bucket, rows in zip(self._buckets, self._device_rows, strict=True):
                self._scale_into(bucket, rows[rank - self.ranks[0]])
        return None

    def abandon(self) -> None:
        """Drop the step's sums."""
        self._armed = False
        self.drop_gradients()

    def _fill(self, number: int, rows: Sequence[torch.Tensor]) -> None:
        self._scale_into(self._buckets[number], rows[-1])

    def _scale_into(self, bucket: Bucket, row: torch.Tensor) -> None:
        factor = 1.0 / self._virtual_workers
        for slot in bucket.slots:
            param = self.params[slot.index]
            if param.grad is None:
                slot.view(row).zero_()
            else:
                torch.mul(param.grad, factor, out=slot.view(row))
                self._used[slot.index] = True
                param.grad = None

    def _locally_used(self) -> list[bool]:
        return self._used

    def _deliver(self, header: Header) -> None:
        super()._deliver(header)
        for param in self.params:
            # DDP packs without gaps. With clipped gradients left in the bucket, a run on an H200 left stock DDP's bits,
            # most likely because a norm is summed otherwise where memory is not aligned; in memory of their own, as DDP
            # has them, it did not.
            if param.grad is not None and param.grad.device.type == "cuda":
                param.grad = param.grad.clone()
        if self.arrival is None and not self._find_unused:
            self._rebuild()

    def _rebuild(self) -> None:
        """After the first step, cut the buckets anew by virtual rank 0's arrival order."""
        owner = self.assignment.worker_of(0)
        order = json.loads(self.group.share_bytes(json.dumps(self._first_arrival).encode(), owner))
        missing = [index for index in range(len(self.params)) if index not in set(order)]
        self.set_arrival([*order, *missing])

    def set_arrival(self, arrival: Sequence[int]) -> None:
        """Use the buckets that follow from this arrival order (after the first step, or from a checkpoint)."""
        self.arrival = list(arrival)
        grads = [None if param.grad is None else param.grad.clone() for param in self.params]
        self._take(self._open())
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = grad


def ddp_exchange(buckets: tuple[Bucket, ...], group: Group, assignment: Assignment) -> Exchange:
    """Open what carries these buckets between the workers of a view."""
    size = assignment.virtual_workers

    def fold(bucket: Bucket) -> Fold:
        return RingFold(bucket.numel, bucket.dtype.itemsize, size)

    return open_exchange(group, buckets, assignment.counts, fold)
