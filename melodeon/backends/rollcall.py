"""Agents whose processes run while the store knows them no more: they were stopped, or are stuck.

One that dies is seen at once and started again. One that stands still would never be: its workers' last words would
stay unheard, and whoever started it would wait for its end for ever. It is killed, and so is started again too.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from melodeon.coord.store import StoreError, open_store

if TYPE_CHECKING:
    from melodeon.backends.elastic_store import StoreThread

CALLS = 3
"""So often is the store asked within the time that an agent may be missing."""


class Absences:
    """Since when each process has been missing; one that has not been there yet may be starting, and is not."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen: set[int] = set()
        self._since: dict[int, float] = {}

    def missing(self, running: Mapping[str, int], present: Collection[str], now: float) -> list[str]:
        """The agents that have been missing for too long; `running` has their processes."""
        here = {pid for agent, pid in running.items() if agent in present}
        self._seen = (self._seen | here) & set(running.values())
        away = self._seen - here
        self._since = {pid: self._since.get(pid, now) for pid in away}
        return [agent for agent, pid in running.items() if now - self._since.get(pid, now) >= self._patience_s]


class RollCall:
    """Asks the store again and again, and waits for no answer: the store may be away."""

    def __init__(self, store: "StoreThread", prefix: str, token: str, patience_s: float) -> None:
        self._store, self._prefix, self._token = store, f"{prefix}agents/", token
        self._absences = Absences(patience_s)
        self._pause_s = patience_s / CALLS
        self._answer: Future[set[str]] | None = None
        self._next = 0.0
        self._heard_at = time.monotonic()
        self._trouble: StoreError | None = None

    def missing(self, running: Mapping[str, int]) -> list[str]:
        """The agents that have been missing for too long, as far as is known by now."""
        now = time.monotonic()
        answer, found = self._answer, list[str]()
        if answer is not None and answer.done():
            self._answer, self._next = None, now + self._pause_s
            try:
                found = self._absences.missing(running, answer.result(), now)
                self._heard_at, self._trouble = now, None
            except StoreError as error:  # who cannot be asked has missed nobody
                self._trouble = error
        elif answer is None and now >= self._next:
            self._answer = self._store.start(self._present())
        return found

    def trouble(self, patience_s: float) -> StoreError | None:
        """What is wrong with the store, if it has not answered for so long."""
        return self._trouble if time.monotonic() - self._heard_at >= patience_s else None

    def close(self) -> None:
        """Ask no more."""
        if self._answer is not None:
            self._answer.cancel()

    async def _present(self) -> set[str]:
        async with open_store(self._store.address, token=self._token, patience_s=self._pause_s) as store:
            return {key.removeprefix(self._prefix) for key in await store.list(self._prefix)}
