"""A job's coordination store, hosted by its launcher in a thread of its own.

A thread, because the launcher may stand still (a terminal that is held, a slow listener) while the job must not.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from melodeon.coord.embedded_server import EmbeddedServer
from melodeon.coord.store import StoreError, open_store

T = TypeVar("T")


@contextlib.contextmanager
def hosted_store(path: Path, address: str | None, token: str, listen: str = "") -> Iterator["StoreThread"]:
    """A store at the Unix socket `path`, or for other machines too at a port of `listen`; gone with the block.

    Or a caller's own at `address`, which stays.
    """
    thread = StoreThread()
    server = None
    try:
        if address is None:
            server = EmbeddedServer(token=token)
            address = thread.run(server.listen_tcp(listen) if listen else server.listen_unix(path))
        else:
            thread.run(_read(address, "melodeon/", token))  # a wrong one is told here, and not by every agent
        thread.address = address
        yield thread
    finally:
        if server is not None:
            thread.run(server.close())
        thread.close()


class StoreThread:
    """An event loop in a thread, and where the store is."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="melodeon-store", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do something in that loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in that loop and wait for it."""
        return self.start(work).result()

    def read(self, key: str, token: str) -> bytes | None:
        """The value of a key."""
        return self.run(_read(self.address, key, token))

    def clear(self, prefix: str, token: str) -> None:
        """Remove all keys that begin so, as far as the store can be reached."""
        with contextlib.suppress(StoreError):
            self.run(_clear(self.address, prefix, token))

    def close(self) -> None:
        """End the thread, and what is under way in it."""
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read(address: str, key: str, token: str) -> bytes | None:
    async with open_store(address, token=token) as store:
        entry = await store.get(key)
        return entry.value if entry else None


async def _clear(address: str, prefix: str, token: str) -> None:
    async with open_store(address, token=token) as store:
        for key in await store.list(prefix):
            await store.delete(key)
