"""Named places where a test can make a process die, stop, lose its connections or believe that it has lost a peer.

    MELODEON_FAILPOINTS="step.exchange=kill@3,view.copy=stop@1/2"

means: kill the process the third time it passes `step.exchange`; stop it (SIGSTOP) the first time worker 2 passes
`view.copy`. Without the variable a failpoint is one look into an empty dictionary.

    MELODEON_FAILPOINTS="dir:/FOLDER"

means: whoever finds the file `view.copy@2` there when it passes `view.copy` as worker 2 does what the file says
(`kill`, `stop`, `lose`, `cut`, or `cut:3`, which heals after 3 s) and renames it to `view.copy@2.struck` before. So a
test can arm a failpoint while the job runs, each strikes once, and the test sees that it has.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from melodeon.core.errors import UsageError, WorkerLost

VARIABLE = "MELODEON_FAILPOINTS"
ACTIONS = ("kill", "stop", "cut", "lose")
FOLDER = "dir:"

Soon = Callable[[Callable[[], None]], object]


@dataclass(slots=True)
class _Armed:
    action: str
    nth: int
    who: str | None
    passed: int = 0


def parse(text: str) -> dict[str, list[_Armed]]:
    """Read the variable's value."""
    found: dict[str, list[_Armed]] = {}
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition("=")
        action, _, when = rest.partition("@")
        nth, _, who = when.partition("/")
        if action not in ACTIONS or not (nth or "1").isdigit():
            raise UsageError(
                f"{VARIABLE} has {item!r}: write NAME=ACTION[@N][/WHO], where ACTION is {', '.join(ACTIONS)}"
            )
        found.setdefault(name, []).append(_Armed(action, int(nth or 1), who or None))
    return found


def _read() -> tuple[dict[str, list[_Armed]], Path | None]:
    text = os.environ.get(VARIABLE, "")
    if text.startswith(FOLDER):
        return {}, Path(text.removeprefix(FOLDER))
    return parse(text), None


_armed, _folder = _read()
_who = ""
_spared: Callable[..., bool] = lambda _: False  # noqa: E731
_soon: Soon = lambda act: act()  # noqa: E731


def identify(who: str, spared: Callable[..., bool] | None = None, soon: Soon | None = None) -> None:
    """Say which worker or agent this process is; reads the variable again.

    `spared` says which sockets a cut leaves alone, and `soon` calls something where the sockets are used.
    """
    global _armed, _folder, _who, _spared, _soon  # one process is one worker or agent
    (_armed, _folder), _who = _read(), who
    _spared, _soon = spared or _spared, soon or _soon


def failpoint(name: str) -> None:
    """Do here what the variable asks for, if it does."""
    if _folder is not None:
        _look(_folder, name)
    for armed in _armed.get(name, ()):
        if armed.who is None or armed.who == _who:
            armed.passed += 1
            if armed.passed == armed.nth:
                _strike(armed.action)


def _look(folder: Path, name: str) -> None:
    path = folder / f"{name}@{_who}"
    with suppress(FileNotFoundError):
        action = path.read_text()
        path.rename(f"{path}.struck")  # for one of several threads only
        _strike(action)


def _strike(action: str) -> None:
    if action == "lose":
        raise WorkerLost("another worker of the job is gone, says a failpoint")
    if action.startswith("cut"):
        from melodeon.coord.cutoff import Cutoff

        cutoff = Cutoff(_spared)
        cutoff.begin()
        seconds = action.partition(":")[2]
        if seconds:
            healing = threading.Timer(float(seconds), lambda: _soon(cutoff.heal))
            healing.daemon = True
            healing.start()
    elif action == "stop":
        # The whole process; but told to this thread, which would go on until another one has taken the signal.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
