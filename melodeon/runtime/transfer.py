"""Newcomers of a view get the job's state from its holders, memory to memory; nothing touches a disk.

    every worker   opens a door and shares its invitation while it connects the view's group
    every worker   calls `replicate` with the same plan; holders give their state, newcomers get it
    a newcomer     calls at its source's door and at the doors of those it must wait for, then says GO and fills
    a holder       lets in everybody who is to come, then serves its rounds in order

On one host the tensors go through a ring in shared memory, between hosts over TCP, both straight from and to the memory
of the tensors; the small values of the state go ahead of them, and are unpacked while the first chunks are written. A
peer that dies is a WorkerLost here at once; one that only falls silent is `check`'s to find.
"""

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import msgspec

from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import WorkerLost
from melodeon.core.replication import Copy, Distance
from melodeon.runtime.carrier import like_this_thread
from melodeon.runtime.transfer_layout import (
    Outline,
    Received,
    Targets,
    describe,
    furnish,
    outline,
    parse_header,
    remember,
    tensors_of,
)
from melodeon.runtime.transfer_link import POLL_MS, Check, Link, Reception, Want, call
from melodeon.runtime.transfer_shared import Ring, read_ring, send_ring, write_ring
from melodeon.runtime.transfer_socket import receive_stream, send_stream

__all__ = ["Door", "Received", "describe", "furnish", "receive_state", "remember", "replicate", "send_state"]

_PREAMBLE = struct.Struct("<QIIB")
"""Length of the header, chunk and number of slots of the ring (zeros: no ring), whether chunks are checked."""
_MAX_HEADER = 256 << 20
_GO = b"\2"
_NEWS = b"\3"


class Door(Reception):
    """Where others find this worker during a view change, and the memory it will share with those of its host.

    Open it before the view is entered, beside the training, and close it after.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        """`address` is this host's, as the others of the view reach it."""
        super().__init__(address)
        self.ring = Ring.make()

    def close(self) -> None:
        """Let nobody in any more; those who wait outside see it."""
        super().close()
        if self.ring is not None:
            self.ring.close()
            self.ring = None


def replicate(
    me: int,
    copies: Sequence[Copy],
    door: Door,
    invitations: Mapping[int, bytes],
    *,
    state: object = None,
    into: object = None,
    take: Callable[[Received], object] = lambda _: None,
    check: Check = lambda: None,
    checked: bool = False,
) -> Received | None:
    """Do one worker's part of the plan to its end. Every worker of the plan calls it with the same `copies`.

    A holder gives `state`, which must not change meanwhile, and gets None. A newcomer gets the state: in the tensors of
    `into` where they agree in path, shape, type, layout and kind of device, else in new ones. `into` is lost if this
    fails, so a worker that still needs its older state receives without it. `check` is called at least each 20 ms and
    raises when the view is over. `checked` adds a checksum to every chunk.

    `take` is given what has come whole, when it was passed on to those who get it from here, or could not be: whoever
    gave it may be gone by then, and nobody else have it.
    """
    mine = next((copy for copy in copies if copy.target == me), None)
    if mine is None:
        send_state(me, copies, door, state, check=check, checked=checked)
        return None
    received = receive_state(mine, invitations, into=into, check=check)
    try:
        send_state(me, copies, door, received.state, check=check, checked=checked)
    finally:
        take(received)
    return received


def receive_state(
    copy: Copy, invitations: Mapping[int, bytes], *, into: object = None, check: Check = lambda: None
) -> Received:
    """Get the state as `copy.target`; see `replicate`."""
    with ExitStack() as open_links:

        def connect(peer: int, want: Want, *, local: bool) -> Link:
            link = call(copy.target, peer, invitations[peer], want, local=local, check=check)
            open_links.callback(link.close)
            return link

        source = connect(copy.source, Want.STATE, local=copy.distance <= Distance.HOST)
        # Called at once: whoever has the state finds all that wait for it at its door.
        waited = [connect(peer, Want.NEWS, local=False) for peer in copy.after]
        for link in waited:
            link.take(1, check)
        failpoint("copy.go")
        source.send(_GO, check)
        return _receive(source, into, check)


def send_state(
    me: int,
    copies: Sequence[Copy],
    door: Door,
    state: object,
    *,
    check: Check = lambda: None,
    checked: bool = False,
) -> None:
    """Serve all copies whose source this worker is, and tell those that wait for its own; see `replicate`.

    A receiver that dies does not hold up the others; it is a WorkerLost when they have been served.
    """
    mine = [copy for copy in copies if copy.source == me]
    waiting = [(Want.NEWS, copy.target) for copy in copies if me in copy.after]
    if not mine and not waiting:
        return
    sender = _Sender(outline(state), door.ring, checked) if mine else None
    with ExitStack() as open_links:
        callers = [*waiting, *((Want.STATE, copy.target) for copy in mine)]
        links = door.admit(callers, check)
        failpoint("copy.admitted")
        for link in links.values():
            open_links.callback(link.close)
        lost: list[WorkerLost] = []
        for caller in waiting:
            _attempt(lost, lambda caller=caller: links[caller].send(_NEWS, check))  # type: ignore[misc]
        if sender is not None:
            for number in sorted({copy.round for copy in mine}):
                turn = [links[Want.STATE, copy.target] for copy in mine if copy.round == number]
                lost += sender.send(turn, check)
        if lost:
            raise lost[0]


class _Sender:
    """A holder at work."""

    def __init__(self, described: Outline, ring: Ring | None, checked: bool) -> None:
        self._outline = described
        self._ring = ring
        self._checked = checked
        self._header = msgspec.msgpack.encode(described.header)

    def send(self, links: Sequence[Link], check: Check) -> list[WorkerLost]:
        """One round: everybody at once; who was lost."""
        ring = self._ring
        local = [link for link in links if ring is not None and link.is_local]
        jobs: list[Callable[[Check], list[WorkerLost]]] = [
            lambda check, link=link: self._stream(link, check)  # type: ignore[misc]
            for link in links
            if link not in local
        ]
        if ring is not None and local:
            jobs.append(lambda check: self._share(ring, local, check))
        return side_by_side(jobs, check)

    def _share(self, ring: Ring, links: Sequence[Link], check: Check) -> list[WorkerLost]:
        lost: list[WorkerLost] = []
        preamble = _PREAMBLE.pack(len(self._header), ring.chunk, ring.num_slots, self._checked)

        def greet(link: Link) -> None:
            link.take(len(_GO), check)
            send_ring(link, ring, preamble)
            link.send(self._header, check)

        living = [link for link in links if _attempt(lost, lambda link=link: greet(link))]  # type: ignore[misc]
        return lost + write_ring(self._outline, ring, living, check, checked=self._checked)

    def _stream(self, link: Link, check: Check) -> list[WorkerLost]:
        def serve() -> None:
            link.take(len(_GO), check)
            link.send(_PREAMBLE.pack(len(self._header), 0, 0, self._checked) + self._header, check)
            send_stream(self._outline, link, check, checked=self._checked)

        lost: list[WorkerLost] = []
        _attempt(lost, serve)
        return lost


def _receive(link: Link, into: object, check: Check) -> Received:
    mine = tensors_of(into)  # while the holder describes its state
    ring = None
    if link.is_local:
        preamble, descriptors = link.take_descriptors(_PREAMBLE.size, check)
        length, chunk, num_slots, checked = _PREAMBLE.unpack(preamble)
        ring = Ring.taken(descriptors[0], chunk, num_slots, link) if descriptors else None
    else:
        length, _, _, checked = _PREAMBLE.unpack(link.take(_PREAMBLE.size, check))
    try:
        if length > _MAX_HEADER:
            raise link.lost(f"it announced a header of {length} bytes, over {_MAX_HEADER}")
        try:
            targets = Targets(parse_header(link.take(length, check)), mine)
        except (msgspec.MsgspecError, ValueError) as error:
            raise link.lost(f"what it sent is not a state: {error}") from error
        if ring is not None:
            read_ring(targets, ring, link, check, checked=checked)
        else:
            receive_stream(targets, link, check, checked=checked)
    finally:
        if ring is not None:
            ring.close()
    return targets.received()


def _attempt(lost: list[WorkerLost], act: Callable[[], Any]) -> bool:
    """Whether it went well; a lost worker is noted."""
    try:
        act()
    except WorkerLost as error:
        lost.append(error)
        return False
    return True


def side_by_side(jobs: Sequence[Callable[[Check], list[WorkerLost]]], check: Check) -> list[WorkerLost]:
    """Do all jobs at once and join their results. `check` is called by this thread alone, and ends them all."""
    if len(jobs) == 1:
        return jobs[0](check)
    over = threading.Event()

    def check_over() -> None:
        if over.is_set():
            raise WorkerLost("the view is over")

    num_jobs = max(len(jobs), 1)
    with ThreadPoolExecutor(num_jobs, "melodeon-copy", initializer=like_this_thread()) as threads:
        futures: list[Future[list[WorkerLost]]] = [threads.submit(job, check_over) for job in jobs]
        try:
            while wait(futures, timeout=POLL_MS / 1000).not_done:
                check()
        finally:
            over.set()
    return [lost for future in futures for lost in future.result()]
