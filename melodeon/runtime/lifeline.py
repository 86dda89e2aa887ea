"""A worker ends when its launcher does, even when the launcher was killed and could tell nobody.

The launcher holds the other end of a pipe and never writes to it. When the launcher is gone, however it went, the
kernel closes that end, the read here returns, and the worker kills its own process group: itself and its loaders.
"""

import os
import signal
import threading


def watch(fd: int) -> threading.Thread:
    """Start the thread that waits for the launcher's end; `fd` is the pipe's read end."""
    thread = threading.Thread(target=_wait, args=(fd,), name="melodeon-lifeline", daemon=True)
    thread.start()
    return thread


def _wait(fd: int) -> None:
    while os.read(fd, 1):
        pass  # nothing is ever sent; only the end counts
    # The launcher made this process the leader of its own group. Anyone else's group is not ours to kill.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
