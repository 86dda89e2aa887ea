"""What the controller could not do, for whoever looks at its terminal: said when it begins, not every second."""

import sys


def said(text: str, before: str) -> str:
    """Tell of a trouble, unless it is the one from before; what is remembered as the last."""
    if text != before:
        print(f"melodeon: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the service has no other log
    return text
