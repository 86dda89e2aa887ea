"""What a script has written to a file that it never closes is in the file when its worker ends.

The interpreter's tear-down does that for a plain `python train.py`. A worker has no tear-down that could: it ends by
`os._exit` where others may be waiting for it, and a daemon thread, such as the one that watches for its launcher's end,
keeps the script's variables alive.
"""

import contextlib
import gc
import io

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def flush_open_files() -> None:
    """Flush every file object of this process that holds something back."""
    for found in gc.get_objects():
        if issubclass(type(found), _WRITERS):  # not isinstance, which asks a proxy for what it stands for
            with contextlib.suppress(OSError, ValueError):  # a full disk, a reader that left, a file that is closed
                found.flush()
