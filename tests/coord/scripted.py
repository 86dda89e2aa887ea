"""A worker without torch: speaks with its agent as the training runtime does, and trains by counting.

It does what its environment says, so that a test can make it slow, failing or deaf. Every step it writes to its log.
"""

import os
import select
import socket
import sys
import time
from pathlib import Path

import msgspec

from melodeon.coord import wire
from melodeon.coord.lines import Line
from melodeon.coord.messages import Notice, Phase, Status
from melodeon.core.launch import Launch

VIRTUAL_WORKERS = 8


class Worker:
    def __init__(self, launch: Launch, steps: int) -> None:
        assert launch.agent is not None
        self.launch, self.steps = launch, steps
        self.status = Status(
            worker=launch.worker_number,
            pid=os.getpid(),
            number=1,
            phase=Phase.STARTING,
            virtual_workers=VIRTUAL_WORKERS,
            total_steps=steps,
            definition="scripted",
        )
        self.notice = Notice(number=0)
        self.link: socket.socket | None = None
        self.frames = wire.Frames(Notice)
        self.heard_at = 0.0

    def say(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, number=self.status.number + 1, **changes)
        self.send(self.status)

    def event(self, text: str) -> None:
        self.send(Line(worker=self.launch.worker_number, text=text))

    def send(self, message: msgspec.Struct) -> None:
        try:
            if self.link is not None:
                self.link.sendall(wire.pack(message))
        except OSError:
            self.link = None

    def connect(self) -> None:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(str(self.launch.agent))
        except OSError:
            return
        self.link, self.frames = link, wire.Frames(Notice)
        self.send(self.status)

    def listen(self, seconds: float) -> None:
        """Hear notices for a while, calling again if the agent is gone."""
        if self.link is None:
            self.connect()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self.link] if self.link else [], [], [], left)
            if not ready or self.link is None:
                return
            try:
                data = self.link.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.link = None
                return
            for notice in self.frames.feed(data):
                if notice.number > self.notice.number:
                    print("notice", notice.number, notice.view.generation if notice.view else 0, time.monotonic())
                    self.notice = notice
                    self.say(notice=notice.number)

    def run(self) -> None:
        self.say(phase=Phase.READY)
        step = 0
        while True:
            self.listen(0.01)
            notice, view = self.notice, self.notice.view
            if notice.released:
                return
            if view is not None and view.generation > self.status.generation:
                if view.rank_of(self.status.worker) is None:
                    continue  # leaving: waits until it is released
                print("view", view.generation, *view.workers)
                self.say(phase=Phase.MEMBER, generation=view.generation, step=step, pause_s=0.001)
            if self.status.phase is not Phase.MEMBER:
                self.send(self.status)
                continue
            step += 1
            self.say(step=step, at=time.monotonic(), busy_s=(0.01,), checkpoint=notice.checkpoint)
            if step % 10 == 0:
                self.event(f'{{"kind": "step", "step": {step}}}')
            if step >= self.steps or (notice.stop and "deaf" not in sys.argv):
                self.say(phase=Phase.DONE, digest="d" * 8)
                print("trained", step)
                return


def main() -> None:
    launch = Launch.from_env(os.environ)
    assert launch is not None
    steps = int(sys.argv[1])
    if f"fail-{launch.worker_number}" in sys.argv:
        raise ValueError("this worker was told to fail")
    print("hello from", launch.worker_number)
    Worker(launch, steps).run()
    if "fail-after" in sys.argv:
        sys.exit(3)
    while f"rest-{launch.worker_number}" in sys.argv and not Path(launch.run_dir, "may-end").exists():
        select.select([], [], [], 0.01)
    print("end of script")


if __name__ == "__main__":
    main()
