"""A worker's connection with its agent: one thread that says how the worker is, and hears which view it is to be in.

The main thread never waits for the agent: it leaves what there is to say, and looks at what was heard. An agent that
is gone is waited for and met again, while the training goes on; only when nobody comes for a long time does the
worker end.
"""

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from melodeon.coord.failpoint import failpoint
from melodeon.coord.lines import Line
from melodeon.coord.messages import Notice, Phase, Status
from melodeon.core.view import View
from melodeon.runtime.carrier import Alarm

HEARTBEAT_S = 1.0
PROGRESS_S = 0.1
"""How often progress alone is said."""
GRACE_S = 60.0
"""How long a worker trains on without an agent."""
_RETRY_S = 0.05
_MOST_LINES = 1000


class Link:
    """Says `Status`, hears `Notice`."""

    def __init__(self, path: str, worker: int, *, grace_s: float = GRACE_S) -> None:
        self.worker = worker
        self._path = path
        self._grace_s = grace_s
        self._status = Status(worker=worker, pid=os.getpid(), number=0, phase=Phase.STARTING)
        self._sent = 0
        self._urgent = True
        self._notice = Notice(number=-1)
        self._newest: View | None = None
        self._alarms: dict[int, Alarm] = {}
        self._heard = threading.Condition()
        self._saying = threading.RLock()  # reentrant: a signal's handler may speak while the main thread does
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._cut = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        threading.Thread(target=self._serve, name="melodeon-link", daemon=True).start()

    # -- what the main thread says -------------------------------------------------------------------------------------

    def post(self, *, urgent: bool = True, **changes: object) -> None:
        """Change what is said of this worker; not urgent: with the next heartbeat or so."""
        with self._saying:
            self._status = msgspec.structs.replace(self._status, number=self._status.number + 1, **changes)
        if urgent:
            self._urgent = True
            self._nudge()

    def say(self, event: dict[str, object]) -> None:
        """One line for the run's events."""
        if self._lines.qsize() < _MOST_LINES:
            self._lines.put(_frame(Line(worker=self.worker, text=json.dumps(event, default=str))))
            self._nudge()

    # -- what the main thread looks at ---------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """What is said of this worker."""
        return self._status

    @property
    def notice(self) -> Notice:
        """The newest notice."""
        return self._notice

    @property
    def view(self) -> View | None:
        """The newest view that concerns this worker."""
        return self._newest

    def guard(self, generation: int) -> Alarm:
        """An alarm that sounds when an unplanned view follows `generation`."""
        alarm = Alarm()
        with self._heard:
            self._alarms[generation] = alarm
            self._sound()
        return alarm

    def forget(self, generation: int) -> None:
        """Views up to `generation` are over; nobody waits on their alarms any more."""
        with self._heard:
            self._alarms = {known: alarm for known, alarm in self._alarms.items() if known > generation}

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something heard makes `until()` true."""
        with self._heard:
            self._heard.wait_for(until)

    def flush(self, timeout_s: float = 1.0) -> None:
        """Wait, for a while, until everything was said: before the process ends."""
        with self._heard:
            self._heard.wait_for(lambda: self._sent >= self._status.number and self._lines.empty(), timeout_s)

    def cut(self) -> None:
        """For tests: as if this worker's host had lost its network."""
        self._cut = True
        self._nudge()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake, b"x")

    def _serve(self) -> None:
        alone_since = time.monotonic()
        while time.monotonic() - alone_since < self._grace_s:
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    if self._cut:
                        raise ConnectionError
                    connection.connect(self._path)
                    self._converse(connection)
            except OSError:
                pass
            else:
                alone_since = time.monotonic()
            if self._sent:
                alone_since = max(alone_since, self._last_contact)
            self._sent = 0
            select_wait(self._woken, _RETRY_S)
        os.write(
            2,
            f"melodeon: worker {self.worker} has been without its agent for {self._grace_s:.0f} s and ends\n".encode(),
        )
        os._exit(1)

    _last_contact = 0.0

    def _converse(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        outgoing, incoming = bytearray(), bytearray()
        said_at = 0.0
        self._urgent = True
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            while not self._cut:
                now = time.monotonic()
                status = self._status
                fresh = status.number > self._sent or not self._sent
                if self._urgent or (fresh and now - said_at >= PROGRESS_S) or now - said_at >= HEARTBEAT_S:
                    self._urgent = False
                    outgoing += _frame(status)
                    sending, said_at = status.number, now
                while not self._lines.empty():
                    outgoing += self._lines.get_nowait()
                if outgoing:
                    sent = _send(connection, outgoing)
                    del outgoing[:sent]
                    if not outgoing:
                        self._last_contact = time.monotonic()
                        with self._heard:
                            self._sent = max(sending, 1)
                            self._heard.notify_all()
                selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0))
                wait = PROGRESS_S if self._status.number > self._sent else HEARTBEAT_S - (time.monotonic() - said_at)
                for key, events in selector.select(max(wait, 0.0)):
                    if key.fileobj is connection and events & selectors.EVENT_READ:
                        data = connection.recv(1 << 16)
                        if not data:
                            return
                        incoming += data
                        self._take(incoming)
                    elif key.fd == self._woken:
                        os.read(self._woken, 4096)

    def _take(self, incoming: bytearray) -> None:
        while len(incoming) >= 4:
            length = int.from_bytes(incoming[:4], "big")
            if len(incoming) < 4 + length:
                return
            body = bytes(incoming[4 : 4 + length])
            del incoming[: 4 + length]
            self._hear(msgspec.msgpack.decode(body, type=Notice))

    def _hear(self, notice: Notice) -> None:
        if notice.number <= self._notice.number:
            return
        failpoint("view.notice")
        with self._heard:
            self._notice = notice
            view = notice.view
            if view is not None and (self._newest is None or view.generation > self._newest.generation):
                self._newest = view
                self._sound()
            self._heard.notify_all()
        self.post(notice=notice.number)

    def _sound(self) -> None:
        view = self._newest
        if view is None or view.planned:
            return
        for generation, alarm in self._alarms.items():
            if generation < view.generation:
                alarm.sound(f"view {view.generation} is formed: {view.reason}")


def select_wait(fd: int, seconds: float) -> None:
    """Wait until `fd` can be read, at most so long, and empty it."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        if selector.select(seconds):
            os.read(fd, 4096)


def _frame(message: Status | Line) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def _send(connection: socket.socket, outgoing: bytearray) -> int:
    try:
        return connection.send(outgoing)
    except BlockingIOError:
        return 0
