"""SIGTERM to a worker of an elastic job: its device is wanted back. It leaves at the end of a step, losing nothing.

The worker says so and trains on; the master makes a view without it and releases it. If that takes longer than the
allowance, the worker ends as if it had been killed, which costs the others a step and nothing else.
"""

import os
import queue
import signal
import threading

from melodeon.runtime.link import Link

ALLOWANCE_S = 30.0
VARIABLE = "MELODEON_ALLOWANCE_S"


def listen(link: Link) -> None:
    """Take SIGTERM for a request to leave. A script's own handler, set later, takes its place."""
    if threading.current_thread() is not threading.main_thread():
        return
    allowance_s = float(os.environ.get(VARIABLE, ALLOWANCE_S))
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
