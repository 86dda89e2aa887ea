"""SIGTERM to a worker of an elastic job: its device is wanted back. It leaves at the end of a step, losing nothing.

The worker says so and trains on; the master makes a view without it and releases it. If that takes longer than the
allowance, the worker ends as if it had been killed, which costs the others a step and nothing else.
"""

import os
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

    def told(_number: int, _frame: object) -> None:
        if not link.status.preempted:
            link.post(preempted=True)
            end = threading.Timer(allowance_s, os._exit, args=(128 + signal.SIGTERM,))
            end.daemon = True
            end.start()

    signal.signal(signal.SIGTERM, told)
