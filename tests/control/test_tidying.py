import asyncio
import gc
import weakref

import pytest

from melodeon.control import tidying
from melodeon.control.tidying import tidied


class Knot:
    """Something that only a full collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_what_has_grown_old_is_collected_in_time_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EVERY_S", 0.2)
    before = gc.get_threshold()

    async def scenario() -> None:
        freed = asyncio.Event()
        with tidied():
            knot = Knot()
            weakref.finalize(knot, freed.set)
            gc.collect(1)
            del knot
            _ = [[] for _ in range(2_000_000)]
            assert not freed.is_set()
            async with asyncio.timeout(30):
                await freed.wait()

    asyncio.run(scenario())
    assert gc.get_threshold() == before
