"""Talking to a running job from another process: `connect(job)` and then scale, migrate, profile, stop it.

Any agent takes a wish and passes it on to the master. A wish keeps its id when it is said again, to the same agent or
to another, so it has one effect however many agents die on the way. Blocking, one thread, no torch.
"""

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from melodeon.coord import registry
from melodeon.coord.lines import Line, Watch
from melodeon.coord.messages import Answer, Ask
from melodeon.coord.wire import Frames, pack
from melodeon.core.errors import MelodeonError, NotFound, Unreachable, UsageError

UNREACHABLE_S = 15.0
"""How long all agents may be away: restarts and a change of the master are over by then."""
RESEND_S = 2.0
"""An agent that has not answered by then may be stuck: the next one is asked as well."""

RETRY_S = 0.1

_HEARD = msgspec.msgpack.Decoder(Answer | Line)


def connect(run: str | Path | None = None) -> "JobHandle":
    """A running job of this machine by its id, the beginning of it, or its run folder; None or `last`: the newest."""
    return JobHandle(registry.find(run))


class JobHandle:
    """A running job, as seen from outside."""

    def __init__(self, entry: registry.Entry) -> None:
        self._entry = entry
        self._first = 0
        """The agent to ask first: the one that answered last."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self._entry.id

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self._entry.run_dir)

    def scale(self, n: int) -> Answer:
        """Have `n` workers."""
        return self.ask("scale", {"n": n})

    def scale_out(self, n: int = 1, on: str | None = None) -> Answer:
        """Have `n` more workers, on one agent's node if it is named."""
        return self.ask("scale_out", {"n": n, "on": on})

    def scale_in(self, n: int | None = None, workers: Sequence[int] | None = None) -> Answer:
        """Have `n` workers fewer (1 by default), or let the named ones go."""
        if n is not None and workers is not None:
            raise UsageError(f"n={n} and workers={workers} were both given: name a number or the workers")
        if workers is not None:
            return self.ask("scale_in", {"workers": _plain(workers)})
        return self.ask("scale_in", {"n": 1 if n is None else n})

    def migrate(self, worker: int | None = None, to: str | None = None) -> Answer:
        """Move a worker (the one of virtual rank 0 by default) to a fresh process, on the named agent's node if any."""
        return self.ask("migrate", {"worker": worker, "to": to})

    def place(self, slots: Mapping[str, Sequence[int]]) -> Answer:
        """Have one worker on each of these device slots, by agent, and none elsewhere."""
        plain = {agent: _plain(some) for agent, some in slots.items()} if isinstance(slots, Mapping) else slots
        return self.ask("place", {"slots": plain})

    def profile(self, min: int, max: int) -> Answer:  # noqa: A002 - the words of the command
        """Measure steps per second at the sizes from `min` to `max`; the job goes on meanwhile."""
        return self.ask("profile", {"min": min, "max": max})

    def checkpoint(self) -> Answer:
        """Write a checkpoint at the next step."""
        return self.ask("checkpoint")

    def status(self) -> dict[str, Any]:
        """Where the job is: step, workers, views."""
        return self.ask("status").values

    def stop(self) -> Answer:
        """End the job at the next step, with a checkpoint if the script keeps some."""
        return self.ask("stop")

    def watch(self, every_s: float = 1.0) -> Iterator[dict[str, Any]]:
        """The status, again at each event and at least every `every_s`, until the job has ended."""
        while self._is_running():
            with _Calls(self._entry.agents, self._first) as calls:
                calls.send(Watch())
                try:
                    yield self.status()
                except (Unreachable, NotFound):
                    if self._is_running():
                        raise
                    return
                calls.wait(time.monotonic() + every_s)

    def ask(self, what: str, values: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Answer:
        """Say a wish until it is answered. Raises UsageError if it is refused, MelodeonError if it could not be done,
        Unreachable if nobody is there.
        """
        ask = Ask(
            id=secrets.token_hex(8),
            what=what,
            values={name: value for name, value in (values or {}).items() if value is not None},
        )
        try:
            pack(ask)
        except OverflowError:
            raise UsageError(
                f"{what} with {ask.values} holds a number that nobody can read: give numbers below 2**63"
            ) from None
        except UnicodeEncodeError:
            raise UsageError(f"{what} with {ask.values} holds a name that nobody can read: give it in UTF-8") from None
        begun = seen = time.monotonic()
        with _Calls(self._entry.agents, self._first) as calls:
            while True:
                calls.send(ask)
                patience_s = RESEND_S if calls.is_connected else RETRY_S
                answer = calls.wait(time.monotonic() + min(patience_s, timeout_s or patience_s), ask.id)
                if answer is not None:
                    self._first = calls.index
                    if not answer.ok:
                        raise MelodeonError(answer.text) if answer.failed else UsageError(answer.text)
                    return answer
                now = time.monotonic()
                seen = now if calls.is_connected else seen
                if not self._is_running():
                    raise NotFound(f"job {self.id} ended before it answered {what!r}: its folder is {self.run_dir}")
                if now - seen > UNREACHABLE_S or (timeout_s is not None and now - begun > timeout_s):
                    raise Unreachable(
                        f"job {self.id} has not answered {what!r} for {now - begun:.0f} s, though its launcher "
                        f"(process {self._entry.pid}) runs: see events.jsonl in {self.run_dir}"
                    )

    def _is_running(self) -> bool:
        return registry.is_listed(self._entry)


def _plain(some: object) -> object:
    """As the wire takes it; what is no row of numbers goes as it is, and the job says what is wrong with it."""
    return list(some) if isinstance(some, Sequence | range) and not isinstance(some, str) else some


class _Calls:
    """Open connections to a job's agents: the next one is opened when the last one is silent or gone."""

    def __init__(self, addresses: Sequence[str], first: int) -> None:
        self._addresses = addresses
        self.index = first
        """The agent called last."""
        self._open: dict[socket.socket, tuple[int, Frames[Answer | Line]]] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Calls":
        return self

    def __exit__(self, *_: object) -> None:
        for call in list(self._open):
            self._close(call)
        self._selector.close()

    @property
    def is_connected(self) -> bool:
        """Whether any agent is on the line."""
        return bool(self._open)

    def send(self, message: Ask | Watch) -> None:
        """Say something to the next agent that takes it."""
        for offset in range(len(self._addresses)):
            index = (self.index + offset) % len(self._addresses)
            if any(index == other for other, _ in self._open.values()):
                continue
            call = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            call.settimeout(RESEND_S)
            try:
                call.connect(self._addresses[index])
                call.sendall(pack(message))
            except OSError:
                call.close()
                continue
            self._open[call] = (index, Frames(_HEARD))
            self._selector.register(call, selectors.EVENT_READ)
            self.index = index
            return

    def wait(self, until: float, answering: str = "") -> Answer | None:
        """The answer to that wish, or None: at the deadline, when a call broke, or (without a wish) at any event."""
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                call = key.fileobj
                assert isinstance(call, socket.socket)
                self.index, frames = self._open[call]
                try:
                    data = call.recv(1 << 16)
                    found = frames.feed(data)
                except (OSError, ValueError):
                    data, found = b"", []
                if not data:
                    self._close(call)
                    return None
                for message in found:
                    if isinstance(message, Answer) and message.id == answering:
                        return message
                if found and not answering:
                    return None
        return None

    def _close(self, call: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(call)
        self._open.pop(call, None)
        call.close()
