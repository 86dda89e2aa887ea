"""The beat of a step: whose turn it is, what has been done with the batch that is out, and when the update comes.

    begin -> enter(rank) -> backward -> [the last local one: reach_update -> begin_update] -> leave -> ... -> advance

The gates of wrapped objects ask here whether a call takes effect. Everything a script can do in the wrong order or
number is refused here, with one sentence.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import torch

from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import UsageError, WorkerLost
from melodeon.runtime.engine import Engine
from melodeon.runtime.finite import FiniteCheck
from melodeon.runtime.reduce import NO_SIGNALS, Header, Signals
from melodeon.runtime.watch import Watch


@dataclass(slots=True)
class Turn:
    """Where the loop stands inside a step: which virtual worker's batch is out, and what was done with it."""

    rank: int
    weight: float
    last: bool
    """Whether it is this worker's last virtual worker of the step."""
    begun: bool = False
    """A backward pass ran."""
    folded: bool = False
    """The final backward pass ran."""
    ended: bool = False
    """The script asked for the update: what it draws and writes from here on is not the virtual worker's any more."""
    header: Header | None = None
    """The exchange is finished and this was agreed."""
    dropped: bool = False
    """Somebody was lost before the commit: nothing takes effect, and the step is run again."""


class Left(Enum):
    """How a loop was left early."""

    BETWEEN = auto()
    """Before anything of the step was done."""
    INSIDE = auto()
    """With some of it done: other workers may stand elsewhere."""
    COMPLETE = auto()
    """After the step's update."""


class Beat:
    """Steps through one worker's virtual workers; `gates.Turnstile` for everything wrapped."""

    def __init__(
        self,
        engine: Engine,
        ranks: range,
        finite: FiniteCheck,
        *,
        skip: bool,
        signals: Callable[[], Signals] | None = None,
    ) -> None:
        self.step = 0
        """Steps that are complete."""
        self.turn: Turn | None = None
        self.before_commit: Callable[[], Callable[[], None] | None] = lambda: None
        """Learns from the other workers what is to be done at the step's commit."""
        self.watch: Watch | None = None
        """Records or scans operators, where the launcher asked for it."""
        self._engine = engine
        self._ranks = ranks
        self._finite = finite
        self._skip = skip
        """A step with a loss that is not finite makes no update."""
        self._updated: set[int] = set()
        """The optimizers that have stepped in this step."""
        self._signals = signals
        """What this worker has heard, where views may change; None where they never do."""
        self.agreed = NO_SIGNALS
        """What all workers have heard, as of the last committed step."""
        self._lost: WorkerLost | None = None
        """Who was lost before the step's first backward pass: what is left of the step is passed through, to be run
        again.
        """
        self.busy_s = 0.0
        """Seconds of this worker's own work in the step, until it waits for the others."""
        self._began = 0.0

    def reseat(self, ranks: range) -> None:
        """Run these virtual workers from the next step on."""
        self._ranks = ranks

    @property
    def updating(self) -> bool:
        """Whether the update of the step in progress has begun."""
        return bool(self._updated)

    # -- gates.Turnstile -----------------------------------------------------------------------------------------------

    def acts_now(self) -> bool:
        """Whether a gated call takes effect now: outside the steps, and for the last local virtual worker of one."""
        return self.turn is None or (self.turn.last and not self.turn.dropped)

    def gradients_needed(self) -> bool:
        """Whether gradients of the step in progress must survive a `zero_grad`."""
        return self.turn is not None and not self.updating

    def reach_update(self, caller: str) -> bool:
        """End this virtual worker's part of the step; for the last one finish the exchange, and True.

        From then on `.grad` is the job's, and buffers and random streams are everybody's.
        """
        turn = self.turn
        if turn is None or turn.header is not None:
            return True
        if turn.dropped:
            return False
        if not turn.folded:
            raise UsageError(
                f"{caller} was called before job.backward(loss) for virtual worker {turn.rank} of step {self.step}"
            )
        self._end_part(turn)
        if not turn.last:
            return False
        header = self._finish(turn)
        if header is None:
            return False
        turn.header = header
        if not header.finite:
            self._finite.found(self.step)
        if self.watch is not None:
            self.watch.commit(self.step)
        return True

    def _finish(self, turn: Turn) -> Header | None:
        """Make the gradients the job's; None if somebody was lost, and the step will be run again."""
        finite = self._finite.verdict(self.step)
        self.busy_s = time.perf_counter() - self._began
        try:
            if self._lost is not None:
                raise self._lost
            commit = self.before_commit()
            signals = NO_SIGNALS if self._signals is None else self._signals()
            header = self._engine.finish(self.step, finite=finite, skip=self._skip, signals=signals)
        except WorkerLost:
            if self._signals is None:
                raise
            turn.dropped = True
            self._engine.give_up()
            return None
        if commit is not None:
            commit()
        self.agreed = header.signals
        return header

    def begin_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that the optimizer steps; False if the step's update is skipped."""
        if self.turn is None:
            return True
        if id(optimizer) in self._updated:
            raise UsageError(
                f"{type(optimizer).__name__} stepped twice in step {self.step}: call optimizer.step() once after "
                "job.backward(loss)"
            )
        failpoint("step.update")
        self._updated.add(id(optimizer))
        header = self.turn.header
        return header is None or header.finite or not self._skip

    # -- turns ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: to read the data of its first virtual worker is this worker's own work, too."""
        self._began = time.perf_counter()

    def enter(self, rank: int, weight: float) -> None:
        """A virtual worker's turn begins."""
        if rank == self._ranks[0]:
            self._updated.clear()
            self._lost = None
            self._engine.begin_step()
        self.turn = Turn(rank, weight, last=rank == self._ranks[-1])
        self._engine.enter(self.step, rank)
        if self.watch is not None:
            self.watch.enter(self.step, rank)

    def backward(self, loss: torch.Tensor, *, more: bool) -> None:
        """Run a backward pass of this virtual worker's loss."""
        turn = self._check_backward(loss)
        self._finite.note(loss)
        if self._lost is None:
            self._backward(turn, loss, final=not more)
        turn.begun, turn.folded = True, not more

    def _backward(self, turn: Turn, loss: torch.Tensor, *, final: bool) -> None:
        try:
            self._engine.begin_backward(self.step, turn.rank, first=not turn.begun, final=final)
        except WorkerLost as lost:
            if self._signals is None:
                raise
            self._lost = lost
            return
        if turn.weight != 0.0:  # a batch of padding alone counts for nothing
            self._engine.backward(loss, turn.weight)
        self._engine.end_backward(turn.rank, final=final)

    def leave(self) -> bool:
        """The loop asks for the next batch: this virtual worker's turn is over; False if the step was dropped."""
        turn = self.turn
        assert turn is not None
        if turn.dropped:
            self.turn = None
            return False
        if not turn.folded:
            raise UsageError(
                f"no job.backward(loss) came for virtual worker {turn.rank} of step {self.step}: call it in place of "
                "loss.backward()"
            )
        if not turn.last:
            self._end_part(turn)
        elif not self.updating:
            raise UsageError(
                f"step {self.step} ended without optimizer.step(): call it, on a wrapped optimizer, after "
                "job.backward(loss)"
            )
        elif self.watch is not None:
            self.watch.leave()
        self.turn = None
        return True

    def leave_early(self) -> Left:
        """The loop was left in the middle, by `break` or by an error. Nothing is exchanged here."""
        turn, self.turn = self.turn, None
        if turn is None:
            return Left.BETWEEN
        if self.watch is not None and (not turn.ended or turn.header is not None):
            self.watch.leave()
        if turn.last and self.updating:
            return Left.COMPLETE
        self._updated.clear()
        self._finite.drop()
        self._engine.reducer.abandon()
        self._engine.outside(self.step)
        return Left.INSIDE if turn.begun or turn.rank != self._ranks[0] else Left.BETWEEN

    def advance(self) -> None:
        """The step is complete."""
        self._updated.clear()
        self.step += 1

    def _end_part(self, turn: Turn) -> None:
        if turn.ended:
            return
        turn.ended = True
        if self.watch is not None:
            self.watch.leave()
        self._engine.leave(turn.rank)

    def _check_backward(self, loss: torch.Tensor) -> Turn:
        turn = self.turn
        if turn is None:
            raise UsageError("job.backward was called outside a step: call it inside the loop over job.loader(...)")
        if turn.folded:
            raise UsageError(
                f"job.backward was called twice for virtual worker {turn.rank} of step {self.step}: add the losses, or "
                "mark all but the last call with more=True"
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(
                f"job.backward needs one number, a scalar loss, and was given {shape}: reduce it with .mean()"
            )
        if not loss.requires_grad:
            raise UsageError(
                "job.backward was given a loss that needs no gradient: compute it from what the wrapped model returns, "
                "outside torch.no_grad() and without .detach()"
            )
        return turn
