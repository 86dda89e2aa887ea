"""`melodeon top`: a job's workers, assignment, pace, pauses and views, live.

A thread follows the job; this one draws, and waits for whichever comes first: news, or a key.
"""

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from melodeon.cli.follow import Tail, ticks
from melodeon.cli.job import JobName, Output, attach, goes_on, is_lost, parse_line, read_json, wants_json
from melodeon.cli.output import WIDTH, print_json
from melodeon.core.errors import MelodeonError
from melodeon.viz.timeline import seconds_of, whole
from melodeon.viz.words import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from melodeon.coord.client import JobHandle

DRAW_EVERY_S = 0.25
"""Not more often than a person can read."""
NUM_SAMPLES = 600
NUM_EVENTS = 50
WRITTEN_S = 10.0
"""How long a launcher may take to write down how its job ended."""
LEAVE = (b"q", b"Q", b"\x1b", b"\x04")


def top(
    job: JobName = None,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and return.")] = False,
    output: Output = "table",
) -> None:
    """Watch a running job: q leaves."""
    as_json = wants_json(output)
    handle = attach(job)
    if as_json:
        print_json(handle.status())
        return
    picture = Picture(handle)
    if once or not sys.stdout.isatty():
        from rich.console import Console

        picture.take(handle.status())
        console = Console()
        console.print(picture.draw(min(WIDTH, console.width), 1000), soft_wrap=False)
        return
    _live(handle, picture)


class Picture:
    """What has been seen of a job so far, ready to be drawn."""

    def __init__(self, handle: "JobHandle") -> None:
        self._tail = Tail(handle.run_dir / "events.jsonl")
        self._status: Mapping[str, Any] = {"job": handle.id}
        self._begin: Mapping[str, object] | None = None
        self._events: deque[Mapping[str, object]] = deque(maxlen=NUM_EVENTS)
        self._samples: deque[tuple[float, int]] = deque(maxlen=NUM_SAMPLES)

    def take(self, status: Mapping[str, Any]) -> None:
        """A new status, and with it the events since the last."""
        self._status = status
        for line in self._tail.lines():
            event = parse_line(line)
            at, step = seconds_of(event), whole(event.get("step"))
            if event.get("kind") in ("begin", "step", "end") and at is not None and step is not None:
                self._sample(at, step)
            if event.get("kind") == "begin":
                self._begin = event
            elif event and event.get("kind") != "step":
                self._events.append(event)
        # Told now, so that a job that stands still is seen to.
        step = whole(status.get("step"))
        if step is not None and step >= 0:
            self._sample(time.time(), step)

    def draw(self, width: int, height: int) -> "RenderableType":
        """The screen of now."""
        from melodeon.viz.screen import screen

        events = [*([self._begin] if self._begin else []), *self._events]
        return screen(self._status, events, samples=list(self._samples), width=width, height=height)

    def _sample(self, at: float, step: int) -> None:
        if self._samples and step < self._samples[-1][1]:
            if at - self._samples[-1][0] < 1.0:
                return  # two sources, one of them a moment behind
            self._samples.clear()  # the job began again from a checkpoint
        if not self._samples or at >= self._samples[-1][0]:
            self._samples.append((at, step))


class _Follower(threading.Thread):
    """Follows the job in a thread of its own; each status is announced by a byte on a pipe."""

    def __init__(self, handle: "JobHandle") -> None:
        super().__init__(name="melodeon-top", daemon=True)
        self._handle = handle
        self.news, self._bell = os.pipe()
        self.left = threading.Event()
        self.latest: Mapping[str, Any] | None = None
        self.error: MelodeonError | OSError | None = None
        self.ended = False

    def run(self) -> None:
        """Until the job has ended, cannot be reached any more, or the person has left."""
        try:
            for status in self._handle.watch():
                self.latest = status
                os.write(self._bell, b".")
                if self.left.wait(DRAW_EVERY_S):
                    return
        except (MelodeonError, OSError) as error:
            self.error = error
        self.ended = True
        os.write(self._bell, b".")


def _live(handle: "JobHandle", picture: Picture) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    follower = _Follower(handle)
    follower.start()
    with (
        contextlib.suppress(KeyboardInterrupt),
        _keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not follower.ended:
            ready = select.select([follower.news, *keys], [], [])[0]
            if any(os.read(key, 1) in (*LEAVE, b"") for key in keys if key in ready):
                break
            if follower.news in ready:
                os.read(follower.news, 64)
                if follower.latest is not None:
                    picture.take(follower.latest)
                    width = min(console.width, 120)
                    live.update(picture.draw(width, console.height), refresh=True)
    follower.left.set()
    if follower.ended:
        _farewell(handle, picture, follower, console.width)


def _farewell(handle: "JobHandle", picture: Picture, follower: _Follower, width: int) -> None:
    """The screen is gone with the terminal's other page: leave the last picture, and how it ended."""
    from rich.console import Console

    Console().print(picture.draw(min(width, WIDTH), 1000))
    if follower.error is not None:
        raise follower.error
    print(f"\njob {handle.id} has ended: {_status(handle.run_dir)} (run: {handle.run_dir})")


def _status(run: Path) -> str:
    """How a run ended. Its launcher takes a job off the list first, and then writes that down."""
    until = time.monotonic() + WRITTEN_S
    for _ in ticks(lambda: not goes_on(run) or time.monotonic() > until, None, interval_s=0.05):
        pass
    record = read_json(run / "run.json")
    return "lost" if is_lost(record) else plain(record.get("status") or "over")


@contextlib.contextmanager
def _keys() -> Iterator[list[int]]:
    """Single keys from the terminal; none where stdin is something else."""
    if not sys.stdin.isatty():
        yield []
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield [fd]
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
