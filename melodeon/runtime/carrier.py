"""One thread per view that talks to the other workers, so that nobody else ever blocks on a peer that is gone.

gloo shows a lost peer to its neighbours only; everybody else waits for a timeout. So whoever needs a result waits for
it *or* for the alarm that says that the view is out of date, and then leaves the thread to its fate: it ends by its
own timeout, and nothing that it still touches is used again.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from melodeon.core.errors import WorkerLost

T = TypeVar("T")


class ViewOutdated(WorkerLost):
    """Somebody of this view is gone: what was being exchanged will not come."""


class Alarm:
    """Raised once, from any thread, when a view is out of date; wakes whoever waits."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._waiting: threading.Event | None = None

    def sound(self, reason: str) -> None:
        """The view is out of date."""
        self.reason = reason
        waiting = self._waiting
        if waiting is not None:
            waiting.set()

    def check(self) -> None:
        """Raise if it has sounded."""
        if self.reason is not None:
            raise ViewOutdated(self.reason)

    def wait_for(self, done: threading.Event) -> None:
        """Wait for `done` or for the alarm; one thread at a time."""
        self._waiting = done  # first: an alarm from here on sets the event
        try:
            if self.reason is None:
                done.wait()
        finally:
            self._waiting = None


class Pending(Generic[T]):
    """What a call on the carrier will return."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._ended = False
        self._value: T | None = None
        self._error: BaseException | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the call has returned."""
        return self._ended and self._error is None

    @property
    def failure(self) -> BaseException | None:
        """What the call has raised."""
        return self._error

    def result(self, alarm: Alarm | None = None) -> T:
        """Wait for it; raises what it raised, or ViewOutdated when the alarm sounds first."""
        if not self._ended:
            if alarm is None:
                self._event.wait()
            else:
                alarm.wait_for(self._event)
                if not self._ended:
                    alarm.check()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set where there is no error

    def end(self, value: T | None, error: BaseException | None) -> None:
        """Called by the carrier."""
        self._value, self._error = value, error
        self._ended = True
        self._event.set()


class Carrier:
    """Runs calls one after the other on a thread of its own. After one has failed, the rest fail with its error."""

    def __init__(self, name: str = "melodeon-exchange") -> None:
        self._queue: queue.SimpleQueue[tuple[Pending[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._broken: BaseException | None = None
        self._last: tuple[Callable[[], object], ...] = ()
        # A daemon, unlike an executor's thread: a blocked one must not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, args=(like_this_thread(),), name=name, daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        """Whether the caller is the carrier itself."""
        return threading.current_thread() is self._thread

    def submit(self, call: Callable[..., T], *args: Any) -> Pending[T]:
        """Have `call(*args)` made after everything that was submitted before."""
        pending: Pending[T] = Pending()
        self._queue.put((pending, call, args))
        return pending

    def close(self, *last: Callable[[], object]) -> None:
        """End the thread after what was submitted, and after `last`, which is called whatever has failed before."""
        self._last += last
        self._queue.put(None)

    def _serve(self, settle: Callable[[], None]) -> None:
        settle()
        while (item := self._queue.get()) is not None:
            pending, call, args = item
            if self._broken is not None:
                pending.end(None, self._broken)
                continue
            try:
                pending.end(call(*args), None)
            except BaseException as error:  # noqa: BLE001  # handed to whoever waits for the result
                self._broken = error
                pending.end(None, error)
            del pending, call, args, item
        for call in self._last:
            call()
        _forget_frames(self._broken)


def like_this_thread() -> Callable[[], None]:
    """Makes another thread that calls it one like this. torch keeps both by thread: how many threads compute, and the
    GPU that memory is taken on, which is the machine's first one until somebody says otherwise.
    """
    num_threads = torch.get_num_threads()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def settle() -> None:
        torch.set_num_threads(num_threads)
        if gpu is not None:
            torch.cuda.set_device(gpu)

    return settle


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames that an error came through, and those of its causes, have in hand.

    Among it are the calls that it has failed, which hold the error: a circle, and in it the memory of a whole exchange,
    until the collector of circles comes, which it does seldom where steps leave nothing behind.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
