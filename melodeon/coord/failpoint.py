"""Named places where a test can make a process die, stop or lose its connections.

    MELODEON_FAILPOINTS="step.exchange=kill@3,view.copy=stop@1/2"

means: kill the process the third time it passes `step.exchange`; stop it (SIGSTOP) the first time worker 2 passes
`view.copy`. Without the variable a failpoint is one look into an empty dictionary.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from melodeon.core.errors import UsageError

VARIABLE = "MELODEON_FAILPOINTS"
ACTIONS = ("kill", "stop", "cut")


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


_armed = parse(os.environ.get(VARIABLE, ""))
_who = ""
_cut: Callable[[], None] | None = None


def identify(who: str, cut: Callable[[], None] | None = None) -> None:
    """Say which worker or agent this process is, and how to lose its connections; reads the variable again."""
    global _armed, _who, _cut  # one process is one worker or agent
    _armed, _who, _cut = parse(os.environ.get(VARIABLE, "")), who, cut


def failpoint(name: str) -> None:
    """Do here what the variable asks for, if it does."""
    for armed in _armed.get(name, ()):
        if armed.who is None or armed.who == _who:
            armed.passed += 1
            if armed.passed == armed.nth:
                _strike(armed.action)


def _strike(action: str) -> None:
    if action == "cut":
        if _cut is not None:
            _cut()
    else:
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
