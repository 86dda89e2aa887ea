"""SIGTERM to a worker of an elastic job: its device is wanted back. It leaves at the end of a step, losing nothing.

The worker says so and trains on; the master makes a view without it and releases it. If that takes longer than the
allowance, the worker ends as if it had been killed, which costs the others a step and nothing else.
"""

import math
import os
import queue
import signal
import threading

from melodeon.core.errors import UsageError
from melodeon.runtime.link import Link

ALLOWANCE_S = 30.0
VARIABLE = "MELODEON_ALLOWANCE_S"
LONGEST_S = 86400.0


def allowance() -> float:
    """How many seconds a worker has to be let go, from the environment."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return ALLOWANCE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_S:  # nor NaN
        raise UsageError(
            f"{VARIABLE}={text} must be a number of seconds from 0 to {LONGEST_S:g}: unset it for {ALLOWANCE_S:g}"
        )
    return seconds


def listen(link: Link) -> None:
    """Take SIGTERM for a request to leave. A script's own handler, set later, takes its place."""
    if threading.current_thread() is not threading.main_thread():
        return
    allowance_s = allowance()
    told: queue.SimpleQueue[int] = queue.SimpleQueue()

    def leave() -> None:
        told.get()
        link.post(preempted=True)
        threading.Event().wait(allowance_s)
        os.kill(os.getpid(), signal.SIGKILL)  # an exit code would be the script's own failure, and end the job

    threading.Thread(target=leave, name="melodeon-preemption", daemon=True).start()
    # The handler only passes it on: it may have interrupted the main thread in the middle of a word to the agent, or
    # in the start of a thread.
    signal.signal(signal.SIGTERM, lambda number, _frame: told.put(number))
