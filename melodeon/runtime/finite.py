"""What happens when a loss is NaN or infinite.

`raise` stops the job, `skip` leaves the step's update out, `ignore` does nothing. Reading a loss from a GPU would
make the CPU wait for it, which costs a job that is bound by launches several percent; so where one worker trains
alone on a GPU with `raise`, a step's verdict is read one step later, and always before the state is stored or
digested.
"""

from typing import Literal

import torch

from melodeon.core.errors import NonFiniteLoss

NanPolicy = Literal["raise", "skip", "ignore"]


class FiniteCheck:
    """Collects the losses of a step and judges them."""

    def __init__(self, policy: str, *, may_lag: bool) -> None:
        self._policy = policy
        self._lags = may_lag and policy == "raise"
        self._losses: list[torch.Tensor] = []
        self._landing: torch.Tensor | None = None
        self._unread: tuple[int, torch.Tensor, torch.cuda.Event] | None = None

    def note(self, loss: torch.Tensor) -> None:
        """One virtual worker's loss."""
        if self._policy != "ignore":
            self._losses.append(loss.detach().reshape(()))

    def drop(self) -> None:
        """Forget the losses of a step that is not finished."""
        self._losses = []

    def verdict(self, step: int) -> bool:
        """Whether all losses of the step were finite; where it may lag, of the step before."""
        losses, self._losses = self._losses, []
        if not losses:
            return True
        finite = torch.isfinite(torch.stack(losses)).all()
        if not self._lags:
            return bool(finite)
        self.catch_up()
        if self._landing is None:
            self._landing = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._landing.copy_(finite, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        self._unread = (step, self._landing, done)
        return True

    def catch_up(self) -> None:
        """Read a verdict that was put off."""
        unread, self._unread = self._unread, None
        if unread is not None:
            step, finite, done = unread
            done.synchronize()
            if not bool(finite):
                self.found(step)

    def found(self, step: int) -> None:
        """A loss of this step was not finite."""
        if self._policy == "raise":
            raise NonFiniteLoss(
                f"a loss of step {step} is NaN or infinite: find its cause, or choose melodeon.join(nan='skip') to "
                "leave such steps out, or nan='ignore'"
            )
