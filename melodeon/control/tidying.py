"""Garbage of a long-lived process, collected when it suits: a service holds thousands of values that stay, and Python
looks through all of them whenever enough new ones have outlived a while, in the middle of somebody's answer.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 300.0
YOUNG, MIDDLE = 20_000, 20
"""New values between two looks at the youngest, and how many such looks between two at those a little older."""
NEVER = 1 << 30


@contextmanager
def tidied() -> Iterator[None]:
    """Inside an event loop: look through everything every few minutes instead of whenever it happens."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    tidying = asyncio.get_running_loop().create_task(_tidy(), name="tidy")
    try:
        yield
    finally:
        tidying.cancel()
        gc.set_threshold(*before)


async def _tidy() -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        gc.collect()
