"""How far processes stand back behind others.

Linux divides processors among sessions first and looks at the niceness of processes only inside one; a session has a
niceness of its own, 0 at first. So whoever begins a session takes its niceness along.
"""

import contextlib
import os
from pathlib import Path

SESSION = Path("/proc/self/autogroup")


def stand_back(least: int = 0) -> None:
    """Be at least as nice as `least`; and if this process has begun its session, let that be as nice. For good."""
    nice = max(least, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if nice > 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # not every kernel has it, and it is no more than a favour
            SESSION.write_text(str(nice))
