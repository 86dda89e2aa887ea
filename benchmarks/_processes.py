"""A measurement on several processes that know one another by a file, and write what they found to another."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import multiprocessing

Work = Callable[..., None]
"""Called in each process with (rank, size, where they meet, *args, where the result goes)."""


def run_processes(work: Work, size: int, *args: object) -> str:
    """What `size` processes have written to the result's file; ends this one if any of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        meet, output = str(Path(folder) / "meet"), Path(folder) / "result"
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=work, args=(rank, size, meet, *args, str(output))) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"a process of {size} failed")
        return output.read_text()
