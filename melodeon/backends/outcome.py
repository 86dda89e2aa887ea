"""How a run ended, and whose fault it was, decided from what was seen.

When one worker fails, its peers fail too, in any order. The one to name is the first that failed for a reason of its
own: an error that it sent and that is not `WorkerLost`, else an exit that nobody asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from melodeon.core.errors import Cancelled, sentence_of
from melodeon.core.text import ending_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One worker's end, in the order seen."""

    worker: int
    code: int
    """As subprocess gives it: negative for a signal."""
    told: bool
    """Whether the workers had been told to stop by then, so that a signal is no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run."""

    exit_code: int
    worker: int | None = None
    """The worker that failed, if one did."""
    reason: str | None = None
    """One sentence, if the run did not end well."""

    @property
    def ok(self) -> bool:
        """Whether every worker ended well."""
        return self.exit_code == 0

    @property
    def status(self) -> str:
        """One word for it: done, stopped (somebody wanted that) or failed."""
        if self.ok:
            return "done"
        return "stopped" if self.exit_code == Cancelled.exit_code else "failed"


STOPPED = Outcome(exit_code=Cancelled.exit_code, reason="the run was stopped on request")


def judge(exits: Sequence[Exit], errors: Sequence[Mapping[str, object]], *, cancelled: bool) -> Outcome:
    """The outcome of a run whose workers have all ended; `errors` are their error events, in the order heard."""
    if cancelled:
        return STOPPED
    if all(end.code == 0 for end in exits):
        return Outcome(exit_code=0)
    failed = [end for end in exits if end.code != 0]
    sent = {int(str(error.get("worker", -1))): error for error in reversed(errors)}
    lost = {worker for worker, error in sent.items() if error.get("type") == "WorkerLost"}
    by_error = [int(str(e.get("worker", -1))) for e in errors if e.get("type") not in ("WorkerLost", "Cancelled")]
    by_exit = [end.worker for end in failed if not end.told and end.worker not in lost]
    failed_workers = {end.worker for end in failed}
    culprit = next((w for w in (*by_error, *by_exit) if w in failed_workers), failed[0].worker)
    end = next(end for end in failed if end.worker == culprit)
    error = sent.get(culprit)
    if error is None:
        return Outcome(exit_code=1, worker=culprit, reason=f"worker {culprit} {ending_of(end.code)}")
    code = error.get("exit_code")
    return Outcome(
        exit_code=code if isinstance(code, int) and code != 0 else 1,
        worker=culprit,
        reason=sentence_of(culprit, str(error.get("type")), str(error.get("text", ""))),
    )
