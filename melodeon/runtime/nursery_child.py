"""Running a script in a forked process as the interpreter would have run it in a fresh one.

`python script.py` sets up `__main__`, `sys.argv` and `sys.path[0]`, turns an uncaught error into an exit code, waits
for threads and runs what was registered to run at exit. A forked copy of another program has to do each by hand. It
leaves out the interpreter's tear-down: the process ends once everything is flushed.
"""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

INTERRUPTED = -signal.SIGINT
"""Ended by Ctrl-C: told to the parent as the death by a signal that it is."""


def run(argv: Sequence[str]) -> int:
    """Run `script.py args...` or `-m module args...`, exit handlers included; the result is its exit code."""
    code = _guard(lambda: _run_main(argv))
    # As the interpreter ends: first the other threads, then exit handlers, then the streams.
    code = _guard(threading._shutdown) or code  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the script
            stream.flush()
    return code


def leave(code: int) -> NoReturn:
    """End the process with what `run` gave."""
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _run_main(argv: Sequence[str]) -> None:
    if argv[0] == "-m":
        sys.argv = [*argv[1:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    script = argv[0]
    sys.argv = [*argv]
    if not sys.flags.safe_path:
        # Ours is the folder that the nursery was started in, as for any `python -m`.
        sys.path[0] = str(Path(script).resolve().parent)
    loader = SourceFileLoader("__main__", str(Path(script).absolute()))
    main = types.ModuleType("__main__")
    vars(main).update(__file__=loader.path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
    # Not by runpy.run_path, which puts the old `__main__` back before exit handlers run.
    sys.modules["__main__"] = main
    exec(loader.source_to_code(loader.get_data(loader.path), loader.path), vars(main))  # noqa: S102 - the job's script


def _guard(call: Callable[[], object]) -> int:
    """The exit code that the interpreter gives to how a call ends."""
    try:
        call()
    except SystemExit as end:
        return _exit_code(end)
    except BaseException as error:  # noqa: BLE001 - whatever a script raises ends it, and is shown by its own hook
        try:
            _show(error)
        except SystemExit as end:
            return _exit_code(end)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def _show(error: BaseException) -> None:
    trace = error.__traceback__
    ours = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit:
        raise
    except BaseException as failure:  # noqa: BLE001 - a broken hook must not hide the error
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        sys.__excepthook__(type(error), error, trace)
