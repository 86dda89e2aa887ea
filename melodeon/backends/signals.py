"""SIGINT and SIGTERM as bytes on a pipe, for loops that wait in a selector."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def forwarded_signals(wake: int) -> Iterator[None]:
    """Signals become bytes on `wake`; outside the main thread they are somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(wake, bytes([number]))

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
