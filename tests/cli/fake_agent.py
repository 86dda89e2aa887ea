"""An agent without a job behind it: a real socket and the real frames, with answers made up by the test.

The command line, the registry and the client around it are the real ones.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from melodeon.coord import registry
from melodeon.coord.lines import Watch
from melodeon.coord.marks import started
from melodeon.coord.messages import Answer, Ask
from melodeon.coord.wire import Frames, pack

Reply = Callable[[Ask], tuple[bool, str, dict[str, Any]] | None]

STATUS: dict[str, Any] = {
    "job": "",
    "generation": 3,
    "step": 1234,
    "phase": "training",
    "restarts_left": 2,
    "queue": [],
    "workers": [
        {"worker": 0, "agent": "a0", "pid": 101, "phase": "member", "ranks": "0-3", "step": 1234, "busy_ms": 12.5},
        {"worker": 2, "agent": "a1", "pid": 102, "phase": "member", "ranks": "4-7", "step": 1234, "busy_ms": 25.0},
    ],
    "history": [
        {"generation": 2, "step": 500, "reason": "scale out to 3 was asked", "pauses": {"0": 0.031}},
        {"generation": 3, "step": 900, "reason": "worker 1 is gone", "pauses": {"0": 0.042, "2": 0.04}},
    ],
}


class FakeAgent:
    """One job's only agent. `asked` holds every wish but `status`, once each."""

    def __init__(self, job: str, run_dir: Path, sock: Path, reply: Reply | None = None) -> None:
        self.job, self.run_dir = job, run_dir
        self.asked: list[Ask] = []
        self.status = {**STATUS, "job": job}
        self.earlier: list[dict[str, Any]] = []
        """What is said before that, once each."""
        self.reply: Reply = reply or (lambda ask: (True, f"{ask.what} was done", {}))
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(sock))
        self._server.listen()
        self._calls: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        for sock in (self._server, *self._calls):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def write_event(self, **event: object) -> None:
        """Add a line to the run's events."""
        with (self.run_dir / "events.jsonl").open("a") as file:
            file.write(json.dumps({"at": datetime.now(UTC).isoformat(), **event}) + "\n")

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                call, _ = self._server.accept()
                self._calls.append(call)
                threading.Thread(target=self._speak, args=(call,), daemon=True).start()

    def _speak(self, call: socket.socket) -> None:
        frames: Frames[Ask | Watch] = Frames(Ask | Watch)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            while data := call.recv(1 << 16):
                for message in frames.feed(data):
                    if isinstance(message, Ask) and (answer := self._answer(message)):
                        call.sendall(pack(answer))

    def _answer(self, ask: Ask) -> Answer | None:
        if ask.what == "status":
            return Answer(id=ask.id, ok=True, text="", values=self.earlier.pop(0) if self.earlier else self.status)
        if ask.id not in [other.id for other in self.asked]:
            self.asked.append(ask)
        said = self.reply(ask)
        return None if said is None else Answer(id=ask.id, ok=said[0], text=said[1], values=said[2])


@contextlib.contextmanager
def job(root: Path, name: str, *, pid: int | None = None, **record: object) -> Iterator[FakeAgent]:
    """A registered job with a run folder below `root` and an agent; its launcher is this process, or `pid`."""
    run_dir = root / ".melodeon" / "runs" / name
    run_dir.mkdir(parents=True)
    created = datetime.now(UTC).isoformat(timespec="milliseconds")
    number = os.getpid() if pid is None else pid
    facts = {"id": name, "created": created, "script": "train.py", "num_workers": 2, "pid": number, "status": "running"}
    (run_dir / "run.json").write_text(json.dumps(facts | record))
    sock = root / f"{name[-8:]}.sock"
    agent = FakeAgent(name, run_dir, sock)
    registry.write(
        registry.Entry(
            id=name,
            run_dir=str(run_dir.absolute()),
            pid=number,
            started=started(number) or 0,
            agents=(str(sock),),
            created=created,
        )
    )
    try:
        yield agent
    finally:
        registry.remove(name)
        agent.close()
