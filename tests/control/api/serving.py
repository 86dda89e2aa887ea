"""A real server on a free port, with a real controller and store, and a fleet that plays jobs forward."""

import asyncio
import hashlib
import json
import socket
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from melodeon.backends.fleet_fake import FakeFleet
from melodeon.control.api import Auth, make_app
from melodeon.control.api.stream import Hub
from melodeon.control.controller import Controller
from melodeon.control.store import Store
from melodeon.core.cluster import Cluster
from melodeon.core.errors import UsageError
from melodeon.core.service import LogChunk, Phase
from melodeon.sched.quota import Quota
from melodeon.sched.tick import Rules

TOKEN = "operator-token-0123456789"
ANN, BOB = "ann-token-0123456789", "bob-token-0123456789"
CURVE = {"1": 2.0, "2": 3.8, "4": 7.0}
START_S = 20.0
WAIT_S = 30.0


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class StrictFleet(FakeFleet):
    """Refuses marks of logs that it has not given, as fleets with files do."""

    def logs(self, job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
        if start and not (start.isascii() and start.isdecimal() and len(start) < 10):
            raise UsageError(f"{start!r} is no mark of a log: use the one that came with the last piece, or none")
        return super().logs(job_dir, start, worker, limit)


class Serving:
    """One running service."""

    def __init__(self, folder: Path, *, devices: str = "2x4:cpu", port: int = 0, quota: Quota | None = None) -> None:
        self.state, self.work = folder / "state", folder / "work"
        self.work.mkdir(exist_ok=True)
        self.state.mkdir(exist_ok=True)
        (self.work / "train.py").write_text("print('hello')\n")
        (self.state / "users.json").write_text(json.dumps({"users": {"ann": key(ANN), "bob": key(BOB)}}))
        self.auth = Auth(TOKEN, operator="root", users=self.state / "users.json")
        self.devices, self.quota, self.port = devices, quota or Quota(), port
        self.fleet = StrictFleet()
        self.controller: Controller
        self.server: _Server
        self.hub: Hub
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    # --- life ---

    def start(self) -> "Serving":
        self._thread.start()
        assert self._ready.wait(START_S)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(START_S)
        assert not self._thread.is_alive()

    def _end(self) -> None:
        self.hub.close()
        self.server.should_exit = True

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        store = Store(self.state / "cluster.db")
        self.controller = Controller(
            store,
            self.fleet,
            Cluster.parse(self.devices),
            policy="elasticflow",
            state_dir=self.state,
            rules=lambda: Rules(quotas=self.auth.quotas(self.quota)),
        )
        app = make_app(
            self.controller,
            self.auth,
            host="127.0.0.1",
            port=self.port,
            roots=[self.work],
            audit=self.state / "audit.jsonl",
        )
        self.app, self.hub = app, app.state.hub
        config = uvicorn.Config(
            app, port=self.port, lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=2
        )
        self.server = _Server(config)
        deciding = self._loop.create_task(self.controller.run())
        serving = self._loop.create_task(self.server.serve())
        await asyncio.wait({asyncio.ensure_future(self.server.up.wait()), serving}, return_when=asyncio.FIRST_COMPLETED)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self._ready.set()
        await asyncio.wait({serving, deciding}, return_when=asyncio.FIRST_COMPLETED)
        if deciding.done():  # it never should
            traceback.print_exception(deciding.exception())
            self._end()
        await serving
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        await self.controller.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the service's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S + START_S)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that a turn of the controller brings about."""
        self.do(self._until(true))

    async def _until(self, true: Callable[[], bool]) -> None:
        engine = self.controller.engine
        turn, turned = engine.turn, asyncio.Event()

        async def turning() -> None:
            await turn()
            turned.set()

        engine.turn = turning  # type: ignore[method-assign]
        engine._stirred.set()  # a turn that is under way already would not be noticed
        try:
            async with asyncio.timeout(WAIT_S):
                while not true():
                    turned.clear()
                    await turned.wait()
        finally:
            engine.turn = turn  # type: ignore[method-assign]

    def running(self, job: str) -> None:
        """Wait until a job trains."""
        self.until(lambda: self.controller.job(job).phase is Phase.RUNNING)

    # --- asking ---

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = TOKEN, **more: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers | more.pop("headers", {}), timeout=20, **more)

    def job(self, name: str = "cnn", **fields: object) -> dict[str, object]:
        return {
            "name": name,
            "run": "train.py --lr 0.1",
            "workdir": str(self.work),
            "steps": 1000,
            "virtual_workers": 4,
            "workers": "1-4",
            "curve": CURVE,
        } | fields


def key(token: str, **more: object) -> Mapping[str, object]:
    return {"token_sha256": hashlib.sha256(token.encode()).hexdigest(), **more}


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Serving]:
    made = Serving(folder, **options).start()
    try:
        yield made
    finally:
        made.stop()
