"""What commands that train check before they start any process, so that a mistake costs no wait."""

import difflib
from pathlib import Path

from melodeon.backends.machine import inspect
from melodeon.core.determinism import D2_FLAGS, parse_level
from melodeon.core.errors import DefinitionError, NotFound, UsageError

ORDERS = ("tree", "ddp")


def require_script(script: str) -> None:
    """Refuse a script that is not there, naming the nearest file that is."""
    path = Path(script)
    if path.is_file():
        return
    if path.is_dir():
        raise NotFound(f"{script!r} is a folder: name the training script in it, such as {path / 'train.py'}")
    folder = path.parent if path.parent.is_dir() else Path()
    names = sorted(found.name for found in folder.glob("*.py"))
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {folder / near[0]}?" if near else "check the path and the folder you are in"
    raise NotFound(f"script {script!r} is not there: {hint}")


def require_order(order: str | None) -> None:
    """Refuse an order of summation that there is not."""
    if order is not None and order not in ORDERS:
        near = difflib.get_close_matches(order, ORDERS, n=1, cutoff=0.0)[0]
        raise UsageError(f"order {order!r} is not one of {', '.join(ORDERS)}: did you mean {near}?")


def require_level(determinism: str) -> str:
    """The level's name, refused where this machine's CPU cannot run its kernels."""
    level = parse_level(determinism)
    if level.name == "D2":
        machine = inspect()
        missing = [flag for flag in D2_FLAGS if flag not in machine.flags]
        if missing:
            raise DefinitionError(
                f"determinism D2 pins kernels to AVX2, and this CPU ({machine.cpu}) lacks {', '.join(missing)}: use D1"
            )
    return level.name
