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
from melodeon.coord.member import Member
from melodeon.coord.messages import Notice, Phase, Status
from melodeon.coord.wire import FrameError, Frames, pack
from melodeon.core.view import View
from melodeon.runtime.carrier import Alarm

HEARTBEAT_S = 1.0
PROGRESS_S = 0.25
"""How often progress alone is said: at multiples of this, so that all workers speak at once and can be compared."""
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
        self.member = Member(worker)
        """What this worker was told of views, and how far it has followed."""
        self._notice = Notice(number=0)
        self._alarms: dict[int, Alarm] = {}
        self._heard = threading.Condition()
        self._saying = threading.Lock()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="melodeon-link", daemon=True)
        self._thread.start()

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
            self._lines.put(pack(Line(worker=self.worker, text=json.dumps(event, default=str))))
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
        return self.member.view

    def guard(self, generation: int) -> Alarm:
        """An alarm that sounds when a view that is to be begun at once follows `generation`."""
        alarm = Alarm()
        with self._heard:
            self._alarms[generation] = alarm
            self._sound()
        return alarm

    def begin(self, view: View) -> bool:
        """Leave the old group for this view; False if a newer one has been heard of."""
        with self._heard:
            if self.member.view is not view:
                return False
            self.member.begin(view.generation)
            return True

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

    def close(self) -> None:
        """Hang up for good; the process goes on without an agent."""
        self._closed = True
        self._nudge()
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake, b"x")

    def _serve(self) -> None:
        met_at = time.monotonic()
        while time.monotonic() - met_at < self._grace_s:
            with contextlib.suppress(OSError, FrameError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._path)
                connection.setblocking(False)
                try:
                    self._converse(connection)
                finally:
                    met_at = time.monotonic()
            if self._closed:
                return
            self._sent = 0  # an agent that was started again knows nothing
            self._rest(_RETRY_S)
        text = f"melodeon: worker {self.worker} has been without its agent for {self._grace_s:.0f} s and ends\n"
        os.write(2, text.encode())
        os._exit(1)

    def _rest(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if selector.select(seconds):
                os.read(self._woken, 4096)

    def _converse(self, connection: socket.socket) -> None:
        """Until the connection ends: say what is due, hear what comes."""
        outgoing, frames = bytearray(), Frames(Notice)
        said_at, saying = 0.0, 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            while not self._closed:
                if self._is_due(said_at):
                    self._urgent, said_at = False, time.time()
                    status = self._status
                    saying = status.number
                    outgoing += pack(status)
                while not self._lines.empty():
                    outgoing += self._lines.get_nowait()
                if outgoing:
                    with contextlib.suppress(BlockingIOError):
                        del outgoing[: connection.send(outgoing)]
                if not outgoing and saying > self._sent:
                    with self._heard:
                        self._sent = saying
                        self._heard.notify_all()
                selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0))
                for key, events in selector.select(max(self._pause(said_at), 0.0)):
                    if key.fileobj is not connection:
                        os.read(self._woken, 4096)
                    elif events & selectors.EVENT_READ:
                        data = connection.recv(1 << 16)
                        if not data:
                            return
                        for notice in frames.feed(data):
                            self._hear(notice)

    def _is_due(self, said_at: float) -> bool:
        """Whether the status is to be said now: it matters, there is progress and it is time, or it was long ago."""
        return self._urgent or self._pause(said_at) <= 0

    def _pause(self, said_at: float) -> float:
        """Seconds until the status is to be said again; the clock is the one that hosts have in common."""
        now = time.time()
        if not said_at <= now:
            return 0.0  # the clock was set back
        if self._status.number > self._sent:
            return (said_at // PROGRESS_S + 1) * PROGRESS_S - now
        return said_at + HEARTBEAT_S - now

    def _hear(self, notice: Notice) -> None:
        failpoint("view.notice")
        with self._heard:
            if not self.member.on_notice(notice):
                return
            self._notice = notice
            self._sound()
            self._heard.notify_all()
        self.post(notice=notice.number)

    def _sound(self) -> None:
        view = self.member.give_up
        if view is None:
            return
        for generation, alarm in self._alarms.items():
            if generation < view.generation:
                alarm.sound(f"view {view.generation} is formed: {view.reason}")
