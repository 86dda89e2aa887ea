"""Several workers as threads of this process, connected by real process groups: for tests of what workers exchange."""

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from melodeon.core.launch import Launch
from melodeon.runtime.group import Group

T = TypeVar("T")


def on_workers(size: int, work: Callable[[Group], T]) -> list[T]:
    """`work(group)` on every worker, results in worker order."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(size) as threads:
        meeting, done = str(Path(folder) / "rendezvous"), threading.Barrier(size, timeout=60)

        def one(worker: int) -> T:
            group = Group.connect(Launch(worker=worker, num_workers=size, rendezvous=meeting), timeout_s=30.0)
            result = work(group)
            # Not the group's own barrier: who has left that may hang up on one who is still in it.
            done.wait()
            group.close()
            return result

        return list(threads.map(one, range(size)))
