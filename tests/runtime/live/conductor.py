"""An agent's place taken by the test: it names the views itself and hears every worker, so that each case is exact.

The workers are real: forks that run a case with the runtime's own link. The real agent has tests of its own.
"""

import atexit
import json
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import msgspec

from melodeon.coord.lines import Line
from melodeon.coord.messages import Notice, Phase, Status
from melodeon.core.launch import Launch
from melodeon.core.view import Seat, View
from tests.runtime.loop import crew

LIMIT_S = 30.0


class Conductor:
    """Starts workers, hears them, and tells them their views."""

    def __init__(
        self, folder: Path, case: crew.Case, *, failpoints: str = "", launch: Launch | None = None, **options: Any
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.generation = 0
        self.statuses: dict[int, Status] = {}
        self.lines: list[dict[str, Any]] = []
        self._case, self._options, self._failpoints = case, options, failpoints
        self._launch = launch or Launch(record_states=True)
        self._socket = str(folder / "agent.sock")
        self._processes: dict[int, Any] = {}
        self._connections: dict[int, socket.socket] = {}
        self._notices: dict[int, Notice] = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._socket)
        self._listener.listen()
        self._over, self._leave = socket.socketpair()
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.exitcode is None:
                process.kill()
            process.join()
        self._leave.close()
        self._server.join()

    # -- workers -------------------------------------------------------------------------------------------------------

    def start(self, *workers: int) -> None:
        for worker in workers:
            fields = asdict(self._launch) | {
                "worker": worker,
                "worker_number": worker,
                "elastic": True,
                "agent": self._socket,
                "run_dir": str(self.folder),
            }
            name = f"{self._case.__module__}:{self._case.__qualname__}"
            process = crew.CONTEXT.Process(target=_work, args=(name, fields, self._options, self._failpoints))
            process.start()
            self._processes[worker] = process

    def pid(self, worker: int) -> int:
        return int(self._processes[worker].pid)

    def kill(self, worker: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(worker), number)

    def stopped(self, worker: int) -> None:
        """Wait until a failpoint has stopped it; looked at whenever another one says something."""
        stat = Path(f"/proc/{self.pid(worker)}/stat")
        self.until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))

    def exit_code(self, worker: int) -> int | None:
        self._processes[worker].join(LIMIT_S)
        return self._processes[worker].exitcode

    # -- views ---------------------------------------------------------------------------------------------------------

    def view(
        self,
        seats: Sequence[tuple[int, int]],
        *,
        planned: bool,
        leaving: Iterable[int] = (),
        reason: str = "a test",
        apart: bool = False,
        factor: int = 0,
    ) -> View:
        """Name a view of (worker, virtual workers) and tell everyone concerned; `apart`: each is on a host of its
        own, as it is told.
        """
        self.generation += 1
        view = View(
            generation=self.generation,
            seats=tuple(
                Seat(worker=worker, agent="a0", host=f"host{worker}" if apart else "here", count=count)
                for worker, count in seats
            ),
            planned=planned,
            meeting="file",
            reason=reason,
            leaving=tuple(leaving),
            factor=factor,
        )
        for worker in (*view.workers, *view.leaving):
            self.tell(worker, view=view)
        return view

    def tell(self, worker: int, **changes: Any) -> None:
        with self._changed:
            old = self._notices.get(worker, Notice(number=0))
            self._notices[worker] = msgspec.structs.replace(old, number=old.number + 1, **changes)
            self._send(worker)

    def until(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        with self._changed:
            if not self._changed.wait_for(true, limit_s):
                raise AssertionError(f"not within {limit_s} s; statuses: {self.statuses}\n{self.log()}")

    def ready(self, *workers: int) -> None:
        self.until(lambda: all(w in self.statuses and self.statuses[w].phase is Phase.READY for w in workers))

    def entered(self, view: View) -> None:
        self.until(lambda: all(self.statuses[w].generation >= view.generation for w in view.workers))

    def step(self, worker: int, step: int) -> None:
        self.until(lambda: self.statuses[worker].step >= step)

    def tour(self, *, grow_at: int, shrink_at: int) -> None:
        """From one worker to three, to two without the first, and to two of which one is new; then to the end."""
        self.start(0)
        self.ready(0)
        self.entered(self.view([(0, 4)], planned=False))
        self.step(0, grow_at)
        self.start(1, 2)
        self.ready(1, 2)
        self.entered(self.view([(0, 1), (1, 2), (2, 1)], planned=True))
        self.step(2, shrink_at)
        self.entered(self.view([(1, 3), (2, 1)], planned=True, leaving=[0]))
        self.tell(0, released=True)
        self.done(0)
        self.start(3)
        self.ready(3)
        self.entered(self.view([(2, 2), (3, 2)], planned=True, leaving=[1]))
        self.tell(1, released=True)
        self.done(1, 2, 3)

    def bereave(self) -> None:
        """Three workers, of which the second is killed by a failpoint; the others go on to the end."""
        self.start(0, 1, 2)
        self.ready(0, 1, 2)
        self.entered(self.view([(0, 2), (1, 1), (2, 1)], planned=False))
        assert self.exit_code(1) == -signal.SIGKILL, self.log()
        self.entered(self.view([(0, 2), (2, 2)], planned=False, reason="worker 1 is gone"))
        self.done(0, 2)

    def done(self, *workers: int) -> None:
        for worker in workers:
            assert self.exit_code(worker) == 0, f"worker {worker} ended with {self.exit_code(worker)}\n{self.log()}"

    @property
    def ended(self) -> crew.Ended:
        return crew.Ended(self.folder, ())

    @property
    def states(self) -> list[tuple[int, str]]:
        """(step, digest) of every line that was written, in the order of the file."""
        return [(row["step"], row["digest"]) for row in self.ended.lines("states.jsonl")]

    def log(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(self.folder.glob("worker-*.log")))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._over, selectors.EVENT_READ)
        buffers: dict[socket.socket, bytearray] = {}
        while self._over not in (calling := [key.fileobj for key, _ in selector.select()]):
            for caller in calling:
                if caller is self._listener:
                    connection, _ = self._listener.accept()
                    buffers[connection] = bytearray()
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = caller  # type: ignore[assignment]
                try:
                    data = connection.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    selector.unregister(connection)
                    connection.close()
                    continue
                buffers[connection] += data
                self._take(connection, buffers[connection])
        for connection in buffers:
            connection.close()
        selector.close()
        self._listener.close()
        self._over.close()

    def _take(self, connection: socket.socket, buffer: bytearray) -> None:
        while len(buffer) >= 4 and len(buffer) >= 4 + (length := int.from_bytes(buffer[:4], "big")):
            message = msgspec.msgpack.decode(bytes(buffer[4 : 4 + length]), type=Status | Line)
            del buffer[: 4 + length]
            with self._changed:
                if isinstance(message, Line):
                    self.lines.append(json.loads(message.text))  # a mean may be NaN
                else:
                    fresh = message.worker not in self._connections
                    self.statuses[message.worker] = message
                    self._connections[message.worker] = connection
                    if fresh:
                        self._send(message.worker)
                self._changed.notify_all()

    def _send(self, worker: int) -> None:
        if worker in self._connections and worker in self._notices:
            body = msgspec.msgpack.encode(self._notices[worker])
            try:
                self._connections[worker].sendall(len(body).to_bytes(4, "big") + body)
            except OSError:
                del self._connections[worker]


def _work(case: str, fields: dict[str, Any], options: dict[str, Any], failpoints: str) -> None:
    os.environ["MELODEON_FAILPOINTS"] = failpoints
    code = 0
    try:
        crew._work(case, fields, options)
    except SystemExit as ended:
        code = int(ended.code or 0)
        atexit._run_exitfuncs()
    os._exit(code)  # as the nursery ends a worker: threads that wait for lost peers are left behind
