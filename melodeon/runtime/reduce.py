"""What happens to gradients between a virtual worker's backward and the update: the part both orders share.

    before(rank) -> the backward pass -> after(rank)      for each local virtual worker
    finish()                                              waits for the exchange; every `.grad` is the job's sum

During the last local backward, buckets leave for the other workers as soon as they are full, in one fixed order,
carried by one background thread. A header of a few integers follows them: which parameters anyone used, whether a
loss was not finite, whether the random states agree.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch.utils.hooks import RemovableHandle

from melodeon.core.assignment import Assignment
from melodeon.core.errors import UsageError
from melodeon.runtime.buckets import Bucket
from melodeon.runtime.exchange import Exchange
from melodeon.runtime.group import Group
from melodeon.runtime.guard import Grads, Marks
from melodeon.runtime.lanes import Lane

_hooks_of = attrgetter("_post_accumulate_grad_hooks")


@dataclass(frozen=True, slots=True)
class Signals:
    """What a worker has heard from its agent, or what all of them have: agreed upon with the header of every step."""

    armed: int = 0
    """The newest generation that the worker could switch to; of all: that every worker could."""
    checkpoint: int = 0
    """The newest request for a checkpoint that it, or anybody, has heard."""
    stop: bool = False
    """Whether it, or anybody, has heard that the job is to stop."""
    leaving: bool = False
    """Whether it, or anybody, has no seat in the generation that it is armed for, and may have values to tell first."""


NO_SIGNALS = Signals()


@dataclass(frozen=True, slots=True)
class Header:
    """What the workers must agree on before the update."""

    used: tuple[bool, ...]
    """Per parameter, whether any virtual worker gave it a gradient."""
    finite: bool
    """Whether every virtual worker's loss was finite."""
    agreed: bool
    """Whether the random states of all virtual workers are equal."""
    buffer_bytes: int
    """Size of the buffers that virtual rank 0 changed."""
    signals: Signals = NO_SIGNALS


class Reducer(ABC):
    """Sums the gradients of `params` over all virtual workers in a fixed order."""

    def __init__(
        self, params: Sequence[torch.nn.Parameter], names: Sequence[str], group: Group, assignment: Assignment
    ) -> None:
        self.params = list(params)
        self.names = list(names)
        self.group = group
        self.assignment = assignment
        self.ranks = assignment.ranks_of(group.rank)
        self._lanes: Sequence[Lane] = ()
        self._buckets: Sequence[Bucket] = ()
        self._device_rows: Sequence[list[torch.Tensor]] = ()
        self._pending: list[int] = []
        self._next = 0
        self._armed = False
        self._learning = True
        """The first step is not over: every backward pass is watched, as far as that tells what the model does."""
        self._arrived: dict[int, None] = {}
        """The parameters whose gradients this backward pass has brought, in order."""
        self._hooks: list[RemovableHandle] = [self._listen_to(index) for index in range(len(self.params))]

    def close(self) -> None:
        """Take the hooks off."""
        self._unhook()

    @property
    @abstractmethod
    def root_scale(self) -> float:
        """What a loss's gradient starts from, so that the sum comes out as the mean."""

    @abstractmethod
    def before(self, rank: int, marks: Marks, *, first: bool, final: bool) -> None:
        """A backward of `rank` begins: its `first` of the step, its `final` one; `marks` is what lies in `.grad`."""

    @abstractmethod
    def after(self, rank: int) -> Grads | None:
        """The final backward of `rank` is done; returns what is still in `.grad`, None: nothing is."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop what was summed of a step that will not be finished."""

    @abstractmethod
    def _fill(self, number: int, rows: Sequence[torch.Tensor]) -> None:
        """Put this worker's rows of bucket `number` where they leave from."""

    @abstractmethod
    def _locally_used(self) -> list[bool]:
        """Per parameter, whether a local virtual worker gave it a gradient."""

    # -- the exchange ------------------------------------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> None:
        """Send through this exchange from now on."""
        self._buckets, self._lanes, self._device_rows = exchange.buckets, exchange.lanes, exchange.device_rows

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            if self._armed or self._learning:
                self._arrive(index)

        return arrived

    def _listen_to(self, index: int) -> RemovableHandle:
        hook = self._hook(index)
        handle: RemovableHandle = self.params[index].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return handle

    def _go_last(self) -> bool:
        """Whether the script has hooks of its own on gradients that have come; they may change them before ours run."""
        ours = 1 if self._hooks else 0
        theirs = [index for index, hooks in enumerate(map(_hooks_of, self.params)) if hooks and len(hooks) > ours]
        for index in theirs if ours else ():
            self._hooks[index].remove()
            self._hooks[index] = self._listen_to(index)
        return bool(theirs)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _listen(self, *, sending: bool) -> None:
        """A backward pass begins; with `sending` its gradients are this step's last, and full buckets leave."""
        self._arrived = {}
        if sending:
            self._pending = [len(bucket.slots) for bucket in self._buckets]
            self._bucket_of = {index: n for n, bucket in enumerate(self._buckets) for index in bucket.indices}
            self._next = 0
            self._armed = True

    def _arrive(self, index: int) -> None:
        if index in self._arrived:
            raise UsageError(
                f"parameter {self.names[index]!r} got its gradient twice in one backward pass, as reentrant activation "
                "checkpointing of a shared module does: use checkpoint(..., use_reentrant=False)"
            )
        self._arrived[index] = None
        if self._armed:
            self._pending[self._bucket_of[index]] -= 1
            while self._next < len(self._pending) and self._pending[self._next] == 0:
                self._launch()

    def _launch(self) -> None:
        number, self._next = self._next, self._next + 1
        with torch.no_grad():
            self._fill(number, self._device_rows[number])
        if self.group.size == 1:
            return
        ready = None
        if self._buckets[number].device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self.group.carrier.submit(self._carry, number, ready)

    def _carry(self, number: int, ready: "torch.cuda.Event | None") -> None:
        lane, device_rows = self._lanes[number], self._device_rows[number]
        if ready is not None:
            ready.synchronize()
            for row, source in zip(lane.rows, device_rows, strict=True):
                row.copy_(source)
        lane.reduce()
        if ready is not None:
            device_rows[0].copy_(lane.rows[0])

    def _launch_rest(self) -> None:
        self._armed = False
        while self._next < len(self._buckets):
            self._launch()

    def finish(self, *, finite: bool, fingerprint: int, buffer_bytes: int, signals: Signals = NO_SIGNALS) -> Header:
        """Wait until every gradient is the job's, and agree on the header."""
        used = self._locally_used()
        if self.group.size == 1:
            for lane in self._lanes:
                lane.reduce()
            header = Header(tuple(used), finite, fingerprint >= 0, buffer_bytes, signals)
        else:
            mine = [int(flag) for flag in used] + [int(not finite), fingerprint, -fingerprint, buffer_bytes]
            mine += [-signals.armed, signals.checkpoint, int(signals.stop), int(signals.leaving)]
            # The carrier keeps the order, and after a failure fails the rest: the header's result is everybody's.
            header = self.group.wait(self.group.carrier.submit(self._exchange_header, mine))
        self._deliver(header)
        self._learning = False
        if not self._lanes:
            self._unhook()  # alone nothing is sent, and a call per parameter and backward pass is saved
        return header

    def _exchange_header(self, mine: Sequence[int]) -> Header:
        vector = torch.tensor(mine, dtype=torch.int64)
        self.group.all_reduce(vector, maximum=True)
        *flags, not_finite, largest, smallest, buffer_bytes, unarmed, checkpoint, stop, leaving = vector.tolist()
        agreed = largest == -smallest and largest >= 0
        signals = Signals(-unarmed, checkpoint, bool(stop), bool(leaving))
        return Header(tuple(bool(flag) for flag in flags), not not_finite, agreed, buffer_bytes, signals)

    def _deliver(self, header: Header) -> None:
        for bucket, rows in zip(self._buckets, self._device_rows, strict=True):
            for slot in bucket.slots:
                self.params[slot.index].grad = slot.view(rows[0]) if header.used[slot.index] else None

    def drop_gradients(self) -> None:
        """Forget `.grad` everywhere: the next step starts from nothing."""
        for param in self.params:
            param.grad = None
