"""What the service could not do, for whoever looks at its terminal: said when it begins, not every second."""

import contextlib
import sys


def said(text: str, before: str) -> str:
    """Tell of a trouble, unless it is the one from before; what is remembered as the last."""
    if text != before:
        tell(text)
    return text


def tell(text: str) -> None:
    """Say it, if somebody still listens: the cluster goes on when its terminal was closed."""
    with contextlib.suppress(OSError):
        print(f"melodeon: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the service has no other log
